"""Admissions and withdrawals while a resync, or another sandbox's withdrawal, is under way."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from shared.clock import now
from shared.models import Sandbox
from shared.sandboxes import specs
from shared.states import Desired, Status
from tests.factories import ApiUser
from tests.fakes.engine import IMAGE
from tests.worker.network.testbed import NetworkTestbed
from tests.worker.scenarios import change, row, running, set_desired
from worker.engine.protocol import ContainerState, ContainerStatus
from worker.network.firewall import FirewallError
from worker.network.isolation import NetworkIsolation
from worker.network.rules import Allowed
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile

GONE = ContainerStatus(ContainerState.ABSENT)


def first(act: Callable[[], object]) -> Callable[[], object]:
    """A function that acts in its first call only."""
    acts = [act]
    return lambda: acts.pop()() if acts else None


def before(monkeypatch: pytest.MonkeyPatch, target: Any, name: str, act: Callable[[], object]) -> None:
    """Call `act` before each call of a method."""
    method = getattr(target, name)

    def call(*args: Any, **options: Any) -> Any:
        act()
        return method(*args, **options)

    monkeypatch.setattr(target, name, call)


def test_sandbox_admitted_during_a_resync_keeps_its_rules(
    testbed: NetworkTestbed, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolation = testbed.isolation
    isolation.refresh()
    sandbox = row(testbed.context, Sandbox, running(testbed.context, user))
    observed = testbed.engine.observe(container_name(sandbox.id))
    isolation.revoke(sandbox, observed)
    reads, compared = threading.Event(), threading.Event()
    admission = threading.Thread(target=isolation.admit, args=(sandbox, observed))

    def list_before_the_start(_installation: str) -> list[Any]:
        admission.start()
        assert reads.wait(10)
        return []

    def wait_for_the_resync() -> None:
        reads.set()
        assert compared.wait(10)

    before(monkeypatch, isolation._access, "read_one", first(wait_for_the_resync))
    before(monkeypatch, isolation._context.proxy, "compare", compared.set)
    with monkeypatch.context() as patched:
        patched.setattr(testbed.engine, "list_containers", list_before_the_start)
        isolation.refresh()
    admission.join(10)
    assert testbed.rules.sandboxes == {observed.address}
    isolation.revoke(sandbox, GONE)
    assert testbed.rules.sandboxes == frozenset(), "its address is known"


def test_sandbox_that_another_worker_admits_during_a_resync_keeps_its_host_names(
    testbed: NetworkTestbed, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The resync has listed the containers before the start."""
    with testbed.context.database.transaction() as session:
        specs.change(session, IMAGE, {"egress": "pypi.org"})
    other, started = NetworkIsolation(testbed.isolation._context), list[str]()
    for isolation in (testbed.isolation, other):
        isolation.refresh()

    def list_before_the_start(_installation: str) -> list[Any]:
        started.append(running(replace(testbed.context, network=other), user))
        return []

    monkeypatch.setattr(testbed.engine, "list_containers", list_before_the_start)
    testbed.isolation.refresh()
    folder = testbed.isolation._context.shared.egress_folder
    assert [file.name for file in folder.iterdir()] == [testbed.address(*started)]


def test_withdrawal_keeps_the_rules_of_the_next_sandbox_at_the_address(
    testbed: NetworkTestbed, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    isolation = testbed.isolation
    isolation.refresh()
    former, latter = (row(testbed.context, Sandbox, running(testbed.context, user)) for _ in range(2))
    observed = testbed.engine.observe(container_name(former.id))
    isolation.revoke(latter, testbed.engine.observe(container_name(latter.id)))
    before(monkeypatch, isolation._access, "read_one", first(lambda: isolation.admit(latter, observed)))
    isolation.revoke(former, GONE)
    assert testbed.rules.sandboxes == {observed.address}


def test_renewal_leaves_no_rules_at_an_address_that_is_revoked_meanwhile(
    testbed: NetworkTestbed, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start renews the rules while its sandbox is deleted. The next sandbox may get the address."""
    isolation = testbed.isolation
    isolation.refresh()
    sandbox = row(testbed.context, Sandbox, running(testbed.context, user))
    before(monkeypatch, isolation._access, "read_one", first(lambda: isolation.revoke(sandbox, GONE)))
    isolation.renew(sandbox)
    assert testbed.rules.sandboxes == frozenset()


def test_repeated_admission_closes_an_address_that_another_worker_has_left_open(
    testbed: NetworkTestbed, user: ApiUser
) -> None:
    isolation, firewall = testbed.isolation, testbed.firewall
    isolation.refresh()
    sandbox = row(testbed.context, Sandbox, running(testbed.context, user))
    observed = testbed.engine.observe(container_name(sandbox.id))
    isolation.revoke(sandbox, observed)
    with testbed.context.database.transaction() as session:
        specs.change(session, IMAGE, {"egress": "none"})
    firewall.allowed = testbed.rules | Allowed(open=frozenset({observed.address}))
    firewall.fails_to_change = True
    with pytest.raises(FirewallError):
        isolation.admit(sandbox, observed)
    firewall.fails_to_change = False
    isolation.admit(sandbox, observed)
    assert testbed.rules.sandboxes == {observed.address}
    assert testbed.rules.open == frozenset()


def test_start_at_an_address_that_another_worker_revoked_is_admitted(testbed: NetworkTestbed, user: ApiUser) -> None:
    """Two workers of a node: one starts the sandbox, the other stops it, and the first resumes it before its resync."""
    other = NetworkIsolation(testbed.isolation._context)
    testbed.isolation.refresh()
    sandbox_id = running(testbed.context, user)
    other.refresh()
    address, admitted = testbed.address(sandbox_id), testbed.rules
    for desired, network in ((Desired.STOPPED, other), (Desired.RUNNING, testbed.isolation)):
        testbed.reuse_addresses()
        set_desired(testbed.context, sandbox_id, desired)
        reconcile(replace(testbed.context, network=network), sandbox_id)
    assert (testbed.address(sandbox_id), testbed.rules) == (address, admitted)


def test_start_during_a_resync_with_an_older_list_is_admitted(
    testbed: NetworkTestbed, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two workers: the resync of one lists a sandbox, the other one stops it, and the first one starts it again."""
    other, compared, starting = NetworkIsolation(testbed.isolation._context), threading.Event(), threading.Event()
    testbed.isolation.refresh()
    sandbox_id = running(testbed.context, user)
    other.refresh()
    admitted, start = testbed.rules, threading.Thread(target=reconcile, args=(testbed.context, sandbox_id))

    def await_comparison(_name: str) -> None:
        starting.set()
        assert compared.wait(10)

    def list_before_the_stop(installation: str) -> list[Any]:
        listed = list_containers(installation)
        set_desired(testbed.context, sandbox_id, Desired.STOPPED)
        reconcile(replace(testbed.context, network=other), sandbox_id)
        testbed.reuse_addresses()
        testbed.engine.before["start"] = await_comparison
        set_desired(testbed.context, sandbox_id, Desired.RUNNING)
        start.start()
        assert starting.wait(10)
        return listed

    list_containers = testbed.engine.list_containers
    monkeypatch.setattr(testbed.engine, "list_containers", list_before_the_stop)
    testbed.isolation.refresh()
    compared.set()
    start.join(10)
    assert (row(testbed.context, Sandbox, sandbox_id).status, testbed.rules) == (Status.RUNNING, admitted)


def test_removal_keeps_the_rules_of_the_next_sandbox_of_another_worker_at_the_address(
    testbed: NetworkTestbed, user: ApiUser
) -> None:
    """A stop frees the address. Another worker of the node may start a sandbox there before the removal has ended."""
    other = NetworkIsolation(testbed.isolation._context)
    testbed.isolation.refresh()
    former = running(testbed.context, user)
    other.refresh()
    address, started = testbed.address(former), list[str]()

    def start_another(_name: str) -> None:
        del testbed.engine.before["remove"]
        testbed.reuse_addresses()
        testbed.engine.containers[container_name(former)].address = ""
        started.append(running(replace(testbed.context, network=other), user))

    testbed.engine.before["remove"] = start_another
    set_desired(testbed.context, former, Desired.DELETED)
    reconcile(testbed.context, former)
    assert row(testbed.context, Sandbox, former).status == Status.DELETED
    assert testbed.address(*started) == address
    assert testbed.rules.sandboxes == {address}


@pytest.mark.parametrize("fails", [False, True], ids=["deleted", "failed"])
def test_removal_during_a_boot_keeps_the_rules_of_the_next_sandbox_at_the_address(
    testbed: NetworkTestbed, user: ApiUser, *, fails: bool
) -> None:
    """The container's removal frees the address, before the removal of the volume and the disk has ended."""
    other = NetworkIsolation(testbed.isolation._context)
    testbed.isolation.refresh()
    former = running(testbed.context, user)
    change(testbed.context, Sandbox, former, status=Status.STARTING, ready_at=None)
    other.refresh()
    address, started = testbed.address(former), list[str]()

    def start_another(_name: str) -> None:
        del testbed.engine.before["remove_volume"]
        testbed.reuse_addresses()
        started.append(running(replace(testbed.context, network=other), user))

    testbed.engine.before["remove_volume"] = start_another
    if fails:
        testbed.engine.stop(container_name(former), 0)
        change(testbed.context, Sandbox, former, due_at=now())
    else:
        set_desired(testbed.context, former, Desired.DELETED)
    reconcile(testbed.context, former)
    assert row(testbed.context, Sandbox, former).status == (Status.ERROR if fails else Status.DELETED)
    assert testbed.address(*started) == address
    assert testbed.rules.sandboxes == {address}


def test_boot_is_deleted_although_the_firewall_fails(testbed: NetworkTestbed, user: ApiUser) -> None:
    testbed.isolation.refresh()
    sandbox_id = running(testbed.context, user)
    change(testbed.context, Sandbox, sandbox_id, status=Status.STARTING, ready_at=None)
    testbed.firewall.fails_to_change = True
    set_desired(testbed.context, sandbox_id, Desired.DELETED)
    reconcile(testbed.context, sandbox_id)
    assert testbed.engine.containers == {}
    testbed.firewall.fails_to_change = False
    change(testbed.context, Sandbox, sandbox_id, due_at=now())
    reconcile(testbed.context, sandbox_id)
    assert row(testbed.context, Sandbox, sandbox_id).status == Status.DELETED
    assert testbed.rules.sandboxes == frozenset()


def test_end_of_a_container_keeps_the_rules_of_the_next_sandbox_at_the_address(
    testbed: NetworkTestbed, user: ApiUser
) -> None:
    """Another worker may start a sandbox at the address before the worker that knows the former one sees its end."""
    other = NetworkIsolation(testbed.isolation._context)
    testbed.isolation.refresh()
    former = running(testbed.context, user)
    other.refresh()
    address = testbed.address(former)
    testbed.end_container(former)
    latter = running(replace(testbed.context, network=other), user)
    change(testbed.context, Sandbox, former, due_at=now())
    reconcile(testbed.context, former)
    assert row(testbed.context, Sandbox, former).status == Status.ERROR
    assert testbed.address(latter) == address
    assert testbed.rules.sandboxes == {address}
