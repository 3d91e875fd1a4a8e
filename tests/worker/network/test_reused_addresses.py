"""Addresses that another worker's sandbox gets: it has its own access there, and nothing of the former sandbox's."""

from dataclasses import replace

from shared.clock import now
from shared.models import Sandbox
from shared.states import Desired, Status
from tests.factories import ApiUser, make_spec
from tests.worker.network.testbed import NetworkTestbed
from tests.worker.scenarios import change, row, running, set_desired
from worker.network.isolation import NetworkIsolation
from worker.sandboxes.reconciler import reconcile


def test_next_sandbox_at_the_address_of_one_that_has_ended_reaches_nothing_of_its(
    testbed: NetworkTestbed, user: ApiUser
) -> None:
    other = NetworkIsolation(testbed.isolation._context)
    testbed.isolation.refresh()
    former = running(testbed.context, user)
    other.refresh()
    make_spec(testbed.context.database, "other", egress="203.0.113.0/24")
    change(testbed.context, Sandbox, former, spec_id="other")
    testbed.isolation.refresh()
    address = testbed.address(former)
    assert testbed.rules.networks == {f"{address} . 203.0.113.0/24"}
    testbed.end_container(former)
    latter = running(replace(testbed.context, network=other), user)
    change(testbed.context, Sandbox, former, due_at=now())
    reconcile(testbed.context, former)
    assert row(testbed.context, Sandbox, former).status == Status.ERROR
    assert testbed.address(latter) == address
    assert testbed.rules.networks == frozenset()
    assert testbed.rules.sandboxes == testbed.rules.open == {address}


def test_removal_during_a_boot_leaves_no_rules_that_a_resync_has_written_meanwhile(
    testbed: NetworkTestbed, user: ApiUser
) -> None:
    """Until the container is removed, it has its address, and so another worker's resync gives it the rules again."""
    other = NetworkIsolation(testbed.isolation._context)
    testbed.isolation.refresh()
    sandbox_id = running(testbed.context, user)
    change(testbed.context, Sandbox, sandbox_id, status=Status.STARTING, ready_at=None)

    def resync(_name: str) -> None:
        other.refresh()

    testbed.engine.before["remove"] = resync
    set_desired(testbed.context, sandbox_id, Desired.DELETED)
    reconcile(testbed.context, sandbox_id)
    assert testbed.engine.containers == {}
    assert testbed.rules.sandboxes == frozenset()
