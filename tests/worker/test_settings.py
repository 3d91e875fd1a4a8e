"""Settings of workers."""

from typing import Any

import pytest
from pydantic import ValidationError

from shared.nodes.placement import HEARTBEAT_LIMIT
from worker.network.addresses import resolvers
from worker.settings import WorkerSettings


@pytest.mark.parametrize(
    ("values", "door"),
    [
        ({}, "http://127.0.0.1:3001"),
        ({"node_address": "10.0.0.5", "door_port": 81}, "http://10.0.0.5:81"),
        ({"node_address": "2001:db8::2"}, "http://[2001:db8::2]:3001"),
        ({"advertised_host": "node-a", "door_certificate": "/etc/door.pem"}, "https://node-a:3001"),
    ],
)
def test_door_url_has_the_advertised_host_and_port(values: dict[str, Any], door: str) -> None:
    settings = WorkerSettings(**values)
    assert settings.door_url == door
    assert settings.webhook_url == f"http://host.docker.internal:{settings.door_port}/api/v1/webhooks"


@pytest.mark.parametrize(
    "values",
    [
        {"heartbeat_seconds": HEARTBEAT_LIMIT.seconds},
        {"heartbeat_seconds": 5, "node_lost_seconds": 5},
        {"heartbeat_seconds": 15, "node_lost_seconds": 10},
    ],
)
def test_too_long_heartbeat_intervals_are_refused(values: dict[str, Any]) -> None:
    """A node would be lost, or take no sandboxes, between two heartbeats, although it works."""
    with pytest.raises(ValidationError):
        WorkerSettings(**values)


@pytest.mark.parametrize("values", [{"heartbeat_seconds": 15}, {"heartbeat_seconds": 1, "node_lost_seconds": 2}])
def test_short_heartbeat_intervals_are_accepted(values: dict[str, Any]) -> None:
    assert WorkerSettings(**values).model_dump().items() >= values.items()


def test_node_without_a_name_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AW_NODE", "")
    with pytest.raises(ValidationError, match="at least 1 character"):
        WorkerSettings()


@pytest.mark.parametrize(
    "address",
    [
        "foo",
        "/var/run/docker.sock",
        "unix://",
        "tcp://engine.example",
        "fd://",
        "foo:bar",
        "tcp://:2376",
        "localhost:2375",
        "tcp://engine.example:0",
    ],
)
def test_engine_that_docker_s_client_can_not_address_is_refused(address: str) -> None:
    """The worker would run, and fail in each call to the engine."""
    with pytest.raises(ValidationError, match=r"unix:///PATH.*tcp://HOST:PORT"):
        WorkerSettings(docker_host=address)


@pytest.mark.parametrize(
    "address",
    [
        "unix:///run/docker.sock",
        "tcp://engine.example:2376",
        "http://[fd00::1]:2375",
        "ssh://me@engine",
        "10.0.0.5:2375",
        "unix:/run/docker.sock",
        "http+unix:///run/docker.sock",
        "TCP://engine.example:2376",
    ],
)
def test_engine_that_docker_s_client_can_address_is_accepted(address: str) -> None:
    assert WorkerSettings(docker_host=address).docker_host == address


@pytest.mark.parametrize("setting", ["dns.example", "9.9.9.9, dns.example", "2620:fe::fe", "AUTO"])
def test_name_servers_that_are_no_ipv4_addresses_are_refused(setting: str) -> None:
    """The worker would run, and fail in each comparison of store and engine, and in each check of a sandbox."""
    with pytest.raises(ValidationError, match="use auto, none, or IPv4 addresses"):
        WorkerSettings(sandbox_dns=setting)


@pytest.mark.parametrize(
    ("setting", "servers"), [("none", ()), ("9.9.9.9", ("9.9.9.9",)), (" 9.9.9.9 , 1.1.1.1,", ("9.9.9.9", "1.1.1.1"))]
)
def test_name_servers_are_addresses_with_commas(setting: str, servers: tuple[str, ...]) -> None:
    assert resolvers(WorkerSettings(sandbox_dns=setting).sandbox_dns) == servers
