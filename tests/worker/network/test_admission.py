"""The admission of a sandbox, for which each start and resume waits: when it happens, and what it costs."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import event

from shared.models import Sandbox
from shared.nodes import model_servers
from shared.states import Desired, Status
from tests.factories import ApiUser
from tests.worker.network.testbed import NetworkTestbed
from tests.worker.scenarios import claim, row, running, set_desired, store_settings, warm
from worker.engine.protocol import ContainerStatus
from worker.network.rules import Allowed
from worker.sandboxes.reconciler import reconcile

SERVER, OTHER = "192.168.1.20:8000", "192.168.1.21:8000"


@pytest.fixture
def warm_id(testbed: NetworkTestbed) -> str:
    """A ready sandbox of the warm pool, with firewall rules."""
    testbed.isolation.refresh()
    warm_id = warm(testbed.context)
    reconcile(testbed.context, warm_id)
    return warm_id


@pytest.fixture
def admitted(testbed: NetworkTestbed, monkeypatch: pytest.MonkeyPatch) -> list[ContainerStatus]:
    """The observations for which rules were written."""
    found: list[ContainerStatus] = []
    admit = testbed.isolation.admit

    def record(sandbox: Sandbox, observed: ContainerStatus) -> None:
        found.append(observed)
        admit(sandbox, observed)

    monkeypatch.setattr(testbed.isolation, "admit", record)
    return found


def allow(testbed: NetworkTestbed, *servers: str) -> None:
    with testbed.context.database.transaction() as session:
        for server in servers:
            model_servers.allow(session, server)


@contextmanager
def statements(testbed: NetworkTestbed) -> Iterator[list[str]]:
    """The statements that SQLAlchemy executes in the block: all except those of `Database.fetch`."""
    found: list[str] = []

    def note(*arguments: object) -> None:
        found.append(str(arguments[2]))

    engine = testbed.context.database.engine
    event.listen(engine, "before_cursor_execute", note)
    yield found
    event.remove(engine, "before_cursor_execute", note)


def models_of(testbed: NetworkTestbed, sandbox_id: str) -> frozenset[str]:
    return testbed.rules.of(frozenset({testbed.address(sandbox_id)})).models


def test_claimed_sandbox_is_admitted_once_before_its_init(
    testbed: NetworkTestbed, warm_id: str, admitted: list[ContainerStatus], user: ApiUser
) -> None:
    allow(testbed, SERVER)
    store_settings(testbed.context, user, llm_base_url=f"http://{SERVER}/v1")
    rules_at_requests: list[frozenset[str]] = []
    testbed.engine.requested = lambda _name: rules_at_requests.append(models_of(testbed, warm_id))
    assert claim(testbed.context, user) == warm_id
    reconcile(testbed.context, warm_id)
    assert row(testbed.context, Sandbox, warm_id).status == Status.RUNNING
    assert set(rules_at_requests) == {frozenset({f"{testbed.address(warm_id)} . 192.168.1.20 . 8000"})}
    assert len(admitted) == 1


def test_rules_that_cannot_be_written_keep_a_claimed_sandbox_from_its_owner(
    testbed: NetworkTestbed, warm_id: str, user: ApiUser
) -> None:
    allow(testbed, SERVER)
    store_settings(testbed.context, user, llm_base_url=f"http://{SERVER}/v1")
    requests: list[str] = []
    testbed.engine.requested = requests.append
    testbed.firewall.problem = "nft is missing"
    claim(testbed.context, user)
    reconcile(testbed.context, warm_id)
    assert (requests, row(testbed.context, Sandbox, warm_id).status) == ([], Status.STARTING)


def test_each_new_observation_is_admitted(
    testbed: NetworkTestbed, admitted: list[ContainerStatus], user: ApiUser
) -> None:
    testbed.isolation.refresh()
    sandbox_id = running(testbed.context, user)
    assert len(admitted) == 1
    set_desired(testbed.context, sandbox_id, Desired.PAUSED)
    reconcile(testbed.context, sandbox_id)
    set_desired(testbed.context, sandbox_id, Desired.RUNNING)
    reconcile(testbed.context, sandbox_id)
    assert len(admitted) == len({id(each) for each in admitted}) == 2


def test_admission_reads_with_one_prepared_statement(testbed: NetworkTestbed, user: ApiUser) -> None:
    allow(testbed, SERVER, OTHER)
    store_settings(testbed.context, user, llm_base_url=f"http://{OTHER}/v1")
    testbed.isolation.refresh()
    sandbox_id = running(testbed.context, user)
    sandbox = row(testbed.context, Sandbox, sandbox_id)
    with statements(testbed) as sent:
        testbed.isolation.renew(sandbox)
    assert (sent, testbed.firewall.changes) == ([], 1)
    store_settings(testbed.context, user, llm_base_url=f"http://{SERVER}/v1")
    testbed.isolation.renew(sandbox)
    assert models_of(testbed, sandbox_id) == {f"{testbed.address(sandbox_id)} . 192.168.1.20 . 8000"}


@pytest.mark.parametrize("has_settings", [False, True])
def test_admission_and_resync_allow_the_same(testbed: NetworkTestbed, user: ApiUser, has_settings: bool) -> None:
    allow(testbed, SERVER, OTHER)
    testbed.isolation.refresh()
    if has_settings:
        store_settings(testbed.context, user, llm_base_url=f"http://{SERVER}/v1")
    sandbox_id, warm_id = running(testbed.context, user), warm(testbed.context)
    reconcile(testbed.context, warm_id)
    admitted = testbed.rules
    assert len(admitted.models) == has_settings
    testbed.isolation.refresh()
    assert testbed.rules == admitted
    assert testbed.rules.of(frozenset({testbed.address(warm_id), testbed.address(sandbox_id)})) != Allowed()
