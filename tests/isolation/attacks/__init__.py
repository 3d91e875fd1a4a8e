"""The attacks, by group."""

from tests.isolation.attack import Attack
from tests.isolation.attacks import (
    agent_server,
    api_and_keys,
    browser,
    door,
    files_and_secrets,
    host_side,
    kernel,
    limits,
    network,
    requests,
    spoofing,
    system_calls,
)

GROUPS = (
    network,
    spoofing,
    api_and_keys,
    requests,
    door,
    files_and_secrets,
    kernel,
    system_calls,
    limits,
    agent_server,
    browser,
    host_side,
)
ATTACKS: list[Attack] = [attack for group in GROUPS for attack in group.ATTACKS]
