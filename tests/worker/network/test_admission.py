"""The admission of a sandbox, for which each start and resume waits: when it happens, and what it costs."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import event

from shared.models import Sandbox
from shared.nodes import model_servers
from shared.states import Desired, Status
from tests.factories import ApiUser
from tests.worker.network.scene import Scene
from tests.worker.scenarios import claim, row, running, set_desired, store_settings, warm
from worker.engine.protocol import ContainerStatus
from worker.network.rules import Allowed
from worker.sandboxes.reconciler import reconcile

SERVER, OTHER = "192.168.1.20:8000", "192.168.1.21:8000"


@pytest.fixture
def warm_id(scene: Scene) -> str:
    """A ready sandbox of the warm pool, with firewall rules."""
    scene.isolation.refresh()
    warm_id = warm(scene.context)
    reconcile(scene.context, warm_id)
    return warm_id


@pytest.fixture
def admitted(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> list[ContainerStatus]:
    """The observations for which rules were written."""
    found: list[ContainerStatus] = []
    admit = scene.isolation.admit

    def record(sandbox: Sandbox, observed: ContainerStatus) -> None:
        found.append(observed)
        admit(sandbox, observed)

    monkeypatch.setattr(scene.isolation, "admit", record)
    return found


def allow(scene: Scene, *servers: str) -> None:
    with scene.context.database.transaction() as session:
        for server in servers:
            model_servers.allow(session, server)


@contextmanager
def statements(scene: Scene) -> Iterator[list[str]]:
    """The statements that SQLAlchemy executes in the block: all except those of `Database.fetch`."""
    found: list[str] = []

    def note(*arguments: object) -> None:
        found.append(str(arguments[2]))

    engine = scene.context.database.engine
    event.listen(engine, "before_cursor_execute", note)
    yield found
    event.remove(engine, "before_cursor_execute", note)


def models_of(scene: Scene, sandbox_id: str) -> frozenset[str]:
    return scene.rules.of(frozenset({scene.address(sandbox_id)})).models


def test_claimed_sandbox_is_admitted_once_before_its_init(
    scene: Scene, warm_id: str, admitted: list[ContainerStatus], user: ApiUser
) -> None:
    allow(scene, SERVER)
    store_settings(scene.context, user, llm_base_url=f"http://{SERVER}/v1")
    rules_at_requests: list[frozenset[str]] = []
    scene.engine.requested = lambda _name: rules_at_requests.append(models_of(scene, warm_id))
    assert claim(scene.context, user) == warm_id
    reconcile(scene.context, warm_id)
    assert row(scene.context, Sandbox, warm_id).status == Status.RUNNING
    assert set(rules_at_requests) == {frozenset({f"{scene.address(warm_id)} . 192.168.1.20 . 8000"})}
    assert len(admitted) == 1


def test_rules_that_cannot_be_written_keep_a_claimed_sandbox_from_its_owner(
    scene: Scene, warm_id: str, user: ApiUser
) -> None:
    allow(scene, SERVER)
    store_settings(scene.context, user, llm_base_url=f"http://{SERVER}/v1")
    requests: list[str] = []
    scene.engine.requested = requests.append
    scene.firewall.problem = "nft is missing"
    claim(scene.context, user)
    reconcile(scene.context, warm_id)
    assert (requests, row(scene.context, Sandbox, warm_id).status) == ([], Status.STARTING)


def test_each_new_observation_is_admitted(scene: Scene, admitted: list[ContainerStatus], user: ApiUser) -> None:
    scene.isolation.refresh()
    sandbox_id = running(scene.context, user)
    assert len(admitted) == 1
    set_desired(scene.context, sandbox_id, Desired.PAUSED)
    reconcile(scene.context, sandbox_id)
    set_desired(scene.context, sandbox_id, Desired.RUNNING)
    reconcile(scene.context, sandbox_id)
    assert len(admitted) == len({id(each) for each in admitted}) == 2


def test_admission_reads_with_one_prepared_statement(scene: Scene, user: ApiUser) -> None:
    allow(scene, SERVER, OTHER)
    store_settings(scene.context, user, llm_base_url=f"http://{OTHER}/v1")
    scene.isolation.refresh()
    sandbox_id = running(scene.context, user)
    sandbox = row(scene.context, Sandbox, sandbox_id)
    with statements(scene) as sent:
        scene.isolation.renew(sandbox)
    assert (sent, scene.firewall.changes) == ([], 1)
    store_settings(scene.context, user, llm_base_url=f"http://{SERVER}/v1")
    scene.isolation.renew(sandbox)
    assert models_of(scene, sandbox_id) == {f"{scene.address(sandbox_id)} . 192.168.1.20 . 8000"}


@pytest.mark.parametrize("has_settings", [False, True])
def test_admission_and_resync_allow_the_same(scene: Scene, user: ApiUser, has_settings: bool) -> None:
    allow(scene, SERVER, OTHER)
    scene.isolation.refresh()
    if has_settings:
        store_settings(scene.context, user, llm_base_url=f"http://{SERVER}/v1")
    sandbox_id, warm_id = running(scene.context, user), warm(scene.context)
    reconcile(scene.context, warm_id)
    admitted = scene.rules
    assert len(admitted.models) == has_settings
    scene.isolation.refresh()
    assert scene.rules == admitted
    assert scene.rules.of(frozenset({scene.address(warm_id), scene.address(sandbox_id)})) != Allowed()
