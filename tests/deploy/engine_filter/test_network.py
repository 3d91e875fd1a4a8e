"""Changes of the network's rules by an unprivileged worker through the filter."""

import json
from collections.abc import Iterator
from ipaddress import IPv4Network
from typing import Any

import pytest

from deploy.engine_filter.bodies import Policy, RequestRefused
from deploy.engine_filter.network import NetworkRoute
from tests.fakes.firewall import FakeFirewall
from tests.services.engine_socket import running_engine_filter
from worker.network.firewall import FilteredFirewall, FirewallError
from worker.network.rules import Allowed, Bridge, RulesChange

BRIDGE = Bridge("br-aw1", IPv4Network("10.9.0.0/24"))
ALLOWED = Allowed(
    services=frozenset({"10.9.0.1 . 3000"}),
    resolvers=frozenset({"9.9.9.9"}),
    sandboxes=frozenset({"10.9.0.2"}),
    open=frozenset({"10.9.0.2"}),
    networks=frozenset({"10.9.0.2 . 192.168.0.0/16", "10.9.0.2 . 8.8.8.8"}),
    models=frozenset({"10.9.0.2 . 192.168.1.5 . 8000"}),
)


@pytest.fixture
def rules() -> FakeFirewall:
    return FakeFirewall()


@pytest.fixture
def worker(rules: FakeFirewall) -> Iterator[FilteredFirewall]:
    """The worker's firewall."""
    with running_engine_filter("unix:///nowhere", Policy("own", frozenset()), NetworkRoute(BRIDGE, rules)) as host:
        yield FilteredFirewall(host)


def test_worker_writes_reads_and_changes_rules(worker: FilteredFirewall, rules: FakeFirewall) -> None:
    assert worker.read() is None
    worker.write(ALLOWED)
    assert (worker.read(), rules.allowed) == (ALLOWED, ALLOWED)
    worker.change(RulesChange(add=Allowed(open=frozenset({"10.9.0.3"})), remove=ALLOWED))
    assert worker.read() == Allowed(open=frozenset({"10.9.0.3"}))
    worker.disconnect(ALLOWED.models)
    assert rules.disconnected == [*ALLOWED.models]
    worker.remove()
    assert rules.allowed is None


def test_worker_gets_the_reason_why_rules_cannot_be_written(worker: FilteredFirewall, rules: FakeFirewall) -> None:
    rules.problem = "nft is missing"
    with pytest.raises(FirewallError, match="nft is missing"):
        worker.write(ALLOWED)


def test_worker_without_a_filter_gets_an_error() -> None:
    with (
        running_engine_filter("unix:///nowhere", Policy("own", frozenset())) as host,
        pytest.raises(FirewallError, match="filter"),
    ):
        FilteredFirewall(host).read()
    with pytest.raises(FirewallError, match="does not respond"):
        FilteredFirewall("unix:///nowhere/docker.sock").read()
    with pytest.raises(FirewallError, match="unix socket"):
        FilteredFirewall("tcp://127.0.0.1:1").read()


@pytest.mark.parametrize(
    "sets",
    [
        {"sandboxes": ["10.9.1.2"]},
        {"sandboxes": ["10.9.0.2 }; flush ruleset"]},
        {"sandboxes": ["10.9.0.2\n"]},
        {"sandboxes": ["10.9.0.0/24"]},
        {"sandboxes": [7]},
        {"sandboxes": "10.9.0.2"},
        {"open": ["0.0.0.0/0"]},
        {"networks": ["10.9.0.2 . @local"]},
        {"networks": ["192.168.0.1 . 10.0.0.0/8"]},
        {"networks": ["10.9.0.2 . 10.0.0.1/8"]},
        {"models": ["10.9.0.2 . 192.168.1.5"]},
        {"models": ["10.9.0.2 . 192.168.1.5 . 70000"]},
        {"models": ["10.9.0.2 . 192.168.1.5 . ²"]},
        {"services": ["10.9.0.1 . 0"]},
        {"resolvers": ["::1"]},
        {"denied": ["10.9.0.1"]},
        [],
    ],
)
def test_elements_of_other_forms_are_refused(rules: FakeFirewall, sets: Any) -> None:
    route = NetworkRoute(BRIDGE, rules)
    for body in ({"allowed": sets}, {"add": sets, "remove": {}}, {"add": {}, "remove": sets}, {"disconnect": sets}):
        with pytest.raises(RequestRefused):
            route.serve("PUT", json.dumps(body).encode())
    assert (rules.writes, rules.changes, rules.disconnected) == (0, 0, [])


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[]", b"{}", b'{"add": {}}', b'{"allowed": {}, "table": "x"}', b"[" * 99_999]
)
def test_malformed_bodies_are_refused(rules: FakeFirewall, text: bytes) -> None:
    with pytest.raises(RequestRefused):
        NetworkRoute(BRIDGE, rules).serve("PUT", text)


def test_other_methods_are_refused(rules: FakeFirewall) -> None:
    with pytest.raises(RequestRefused):
        NetworkRoute(BRIDGE, rules).serve("POST", b"{}")
