"""Sandboxes over HTTP: each command sets a desired state, enqueues its job and answers immediately."""

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.ids import new_id
from shared.models import Node, Sandbox, SandboxSpec
from shared.queue.jobs import DeleteSandbox, Job, PauseSandbox, ResumeSandbox, StartSandbox, StopSandbox
from shared.states import Desired, Reason, Status
from shared.users import settings_store
from tests.api.responses import get_json
from tests.doubles import RecordingPublisher
from tests.factories import VAULT, ApiUser, make_sandbox, make_spec, session_key_of
from tests.rows import stored_row

PATH = "/api/v1/sandboxes"
_get = partial(get_json, PATH)
FIRST = datetime(2026, 1, 1, tzinfo=UTC)


class TestStart:
    def test_start_takes_the_default_spec(
        self,
        client: TestClient,
        user: ApiUser,
        spec: SandboxSpec,
        node: Node,
        database: Database,
        publisher: RecordingPublisher,
    ) -> None:
        shown = client.post(PATH, headers=user.headers).json()
        assert (shown["status"], shown["desired_status"]) == ("STARTING", "RUNNING")
        assert (shown["sandbox_spec_id"], shown["created_by_user_id"]) == (spec.id, user.id)
        assert (shown["session_api_key"], shown["exposed_urls"]) == (None, None)
        row = stored_row(database, Sandbox, shown["id"])
        assert (row.node_id, row.due_at is not None) == (node.id, True)
        assert publisher.jobs == [StartSandbox(shown["id"], node.id)]
        [move] = _get(client, user, f"/{shown['id']}/transitions")
        assert (move["from_status"], move["to_status"]) == (None, "STARTING")

    @pytest.mark.usefixtures("node")
    def test_start_takes_the_spec_of_the_settings_while_it_exists(
        self, client: TestClient, user: ApiUser, other_user: ApiUser, spec: SandboxSpec, database: Database
    ) -> None:
        other = make_spec(database, "registry.example.com/other:1", position=1)
        for named, owner, expected in ((other, user, other), ("gone:1", user, spec), (None, other_user, spec)):
            wanted = {"default_sandbox_spec_id": getattr(named, "id", named)}
            with database.transaction() as session:
                settings_store.change(session, VAULT, owner.id, wanted)
            assert client.post(PATH, headers=owner.headers).json()["sandbox_spec_id"] == expected.id
            requested = client.post(PATH, params={"sandbox_spec_id": spec.id}, headers=owner.headers)
            assert requested.json()["sandbox_spec_id"] == spec.id

    @pytest.mark.usefixtures("spec", "node")
    def test_start_takes_the_named_spec(self, client: TestClient, user: ApiUser, database: Database) -> None:
        other = make_spec(database, "registry.example.com/other:1", position=1)
        response = client.post(PATH, params={"sandbox_spec_id": other.id}, headers=user.headers)
        assert response.json()["sandbox_spec_id"] == other.id
        response = client.post(PATH, params={"sandbox_spec_id": "unknown"}, headers=user.headers)
        assert response.status_code == 404
        assert "unknown" in response.json()["detail"]

    @pytest.mark.usefixtures("spec")
    def test_start_without_a_node_waits(self, client: TestClient, user: ApiUser, database: Database) -> None:
        shown = client.post(PATH, headers=user.headers).json()
        row = stored_row(database, Sandbox, shown["id"])
        assert (row.node_id, row.status) == (None, Status.STARTING)


COMMANDS = [
    ("POST", "/pause", Desired.PAUSED, PauseSandbox),
    ("POST", "/pause?kind=frozen", Desired.PAUSED, PauseSandbox),
    ("POST", "/pause?kind=stopped", Desired.STOPPED, StopSandbox),
    ("POST", "/resume", Desired.RUNNING, ResumeSandbox),
    ("DELETE", "", Desired.DELETED, DeleteSandbox),
]


@pytest.mark.parametrize(("method", "path", "desired", "job"), COMMANDS)
@pytest.mark.parametrize("status", [Status.STARTING, Status.RUNNING, Status.PAUSED, Status.ERROR])
def test_commands_set_desired_states(
    client: TestClient,
    user: ApiUser,
    database: Database,
    publisher: RecordingPublisher,
    method: str,
    path: str,
    desired: Desired,
    job: type[Job],
    status: Status,
) -> None:
    sandbox = make_sandbox(database, user, status=status)
    response = client.request(method, f"{PATH}/{sandbox.id}{path}", headers=user.headers)
    expected: dict[str, Any] = {"success": True} | ({"paused_sandbox_ids": []} if desired == Desired.RUNNING else {})
    assert (response.status_code, response.json()) == (200, expected)
    row = stored_row(database, Sandbox, sandbox.id)
    assert (row.desired, row.generation) == (desired, sandbox.generation + 1)
    restarts = (status, desired) == (Status.ERROR, Desired.RUNNING)
    assert row.status == (Status.STARTING if restarts else status)  # workers write all other observed states
    assert row.due_at is not None
    assert publisher.jobs == [job(sandbox.id, sandbox.node_id)]


@pytest.mark.parametrize(("method", "path", "desired", "job"), COMMANDS)
def test_command_on_an_unknown_sandbox_is_a_404(
    client: TestClient,
    user: ApiUser,
    database: Database,
    publisher: RecordingPublisher,
    method: str,
    path: str,
    desired: Desired,
    job: type[Job],
) -> None:
    deleted = make_sandbox(database, user, status=Status.DELETED)
    leaving = make_sandbox(database, user, desired=Desired.DELETED)
    for sandbox_id in (deleted.id, leaving.id, new_id()):
        response = client.request(method, f"{PATH}/{sandbox_id}{path}", headers=user.headers)
        assert response.status_code == 404, (desired, job)
        assert sandbox_id in response.json()["detail"]
    assert publisher.jobs == []


@pytest.mark.parametrize("kind", ["", "STOPPED", "deleted"])
def test_pause_of_an_unknown_kind_is_a_422(
    client: TestClient, user: ApiUser, database: Database, publisher: RecordingPublisher, kind: str
) -> None:
    sandbox = make_sandbox(database, user)
    response = client.post(f"{PATH}/{sandbox.id}/pause", params={"kind": kind}, headers=user.headers)
    assert (response.status_code, response.json()["detail"][0]["loc"]) == (422, ["query", "kind"])
    assert stored_row(database, Sandbox, sandbox.id).generation == sandbox.generation
    assert publisher.jobs == []


def test_delete_with_the_id_as_a_parameter_is_accepted(client: TestClient, user: ApiUser, database: Database) -> None:
    sandbox = make_sandbox(database, user)
    url = f"{PATH}/{sandbox.id}?sandbox_id={sandbox.id}"
    assert client.delete(url, headers=user.headers).json() == {"success": True}
    assert _get(client, user, "/search")["items"] == []
    assert _get(client, user, id=sandbox.id) == [None]


class TestFields:
    def test_running_sandbox_shows_its_fields(self, client: TestClient, user: ApiUser, database: Database) -> None:
        sandbox = make_sandbox(database, user, created_at=FIRST)
        shown = _get(client, user, f"/{sandbox.id}")
        assert shown["session_api_key"] == session_key_of(sandbox)
        url = f"http://testserver/sandbox/{sandbox.id}"
        assert shown["exposed_urls"] == [{"name": "AGENT_SERVER", "url": url, "port": 8000}]
        assert shown["created_at"] == "2026-01-01T00:00:00.000000Z"
        assert [shown] == _get(client, user, id=sandbox.id) == _get(client, user, "/search")["items"]

    @pytest.mark.parametrize("status", [Status.STARTING, Status.PAUSED, Status.ERROR])
    def test_sandbox_that_does_not_run_hides_its_urls(
        self, client: TestClient, user: ApiUser, database: Database, status: Status
    ) -> None:
        sandbox = make_sandbox(database, user, status=status)
        shown = _get(client, user, f"/{sandbox.id}")
        assert shown["status"] == status
        assert (shown["session_api_key"], shown["exposed_urls"]) == (None, None)
        assert shown["reason"] == (Reason.EXIT_CODE if status == Status.ERROR else None)
        assert shown["pause_kind"] == ("FROZEN" if status == Status.PAUSED else None)

    @pytest.mark.parametrize(
        ("desired", "status", "kind"),
        [
            (Desired.RUNNING, "RUNNING", None),
            (Desired.PAUSED, "PAUSED", "FROZEN"),
            (Desired.STOPPED, "PAUSED", "STOPPED"),
        ],
    )
    def test_desired_status_uses_the_values_of_status(
        self, client: TestClient, user: ApiUser, database: Database, desired: Desired, status: str, kind: str | None
    ) -> None:
        sandbox = make_sandbox(database, user, desired=desired)
        for shown in (_get(client, user, f"/{sandbox.id}"), _get(client, user, "/search")["items"][0]):
            assert (shown["desired_status"], shown["desired_pause_kind"]) == (status, kind)

    def test_session_key_is_not_stored_in_plain_text(
        self, client: TestClient, user: ApiUser, database: Database
    ) -> None:
        sandbox = make_sandbox(database, user)
        assert session_key_of(sandbox) not in str(stored_row(database, Sandbox, sandbox.id))
        assert session_key_of(sandbox) in str(_get(client, user, f"/{sandbox.id}"))


class TestLists:
    def test_sandboxes_are_paged_newest_first(
        self, client: TestClient, user: ApiUser, other_user: ApiUser, database: Database
    ) -> None:
        ids = [make_sandbox(database, user, created_at=FIRST + timedelta(hours=number)).id for number in range(5)]
        make_sandbox(database, other_user)
        found: list[str] = []
        page: dict[str, Any] = {"next_page_id": ""}
        while page["next_page_id"] is not None:
            params = {"page_id": page["next_page_id"]} if page["next_page_id"] else {}
            page = _get(client, user, "/search", limit=2, **params)
            found += [item["id"] for item in page["items"]]
        assert found == ids[::-1]

    def test_sandboxes_are_filtered_by_status(self, client: TestClient, user: ApiUser, database: Database) -> None:
        paused = [
            make_sandbox(database, user, status=Status.PAUSED, created_at=FIRST + timedelta(days=n)) for n in (0, 2)
        ]
        make_sandbox(database, user, created_at=FIRST + timedelta(days=1))
        page = _get(client, user, "/search", status__eq="PAUSED", limit=1)
        rest = _get(client, user, "/search", status__eq="PAUSED", limit=1, page_id=page["next_page_id"])
        assert [item["id"] for item in (*page["items"], *rest["items"])] == [paused[1].id, paused[0].id]
        assert rest["next_page_id"] is None
        assert _get(client, user, "/search", status__eq="ERROR")["items"] == []
        assert len(_get(client, user, "/search", status="ERROR")["items"]) == 3  # an unknown parameter
        assert (
            client.get("/api/v1/sandboxes/search", params={"status__eq": "x"}, headers=user.headers).status_code == 422
        )

    def test_batch_keeps_its_order(
        self, client: TestClient, user: ApiUser, other_user: ApiUser, database: Database
    ) -> None:
        mine, theirs = make_sandbox(database, user).id, make_sandbox(database, other_user).id
        found = _get(client, user, id=[theirs, mine.upper(), mine])
        assert [item and item["id"] for item in found] == [None, mine, mine]
        for ids, status in (([new_id()] * 100, 200), ([new_id()] * 101, 400), ([], 422)):
            assert client.get(PATH, params={"id": ids}, headers=user.headers).status_code == status

    def test_specs_are_listed(self, client: TestClient, user: ApiUser, database: Database) -> None:
        for position, spec_id in enumerate(("b:1", "a:1", "c:1")):
            make_spec(database, spec_id, position=position, env={"A": "b"})
        url = "/api/v1/sandbox-specs"
        page = client.get(f"{url}/search", params={"limit": 2}, headers=user.headers).json()
        assert [item["id"] for item in page["items"]] == ["b:1", "a:1"]
        assert page["items"][0]["initial_env"] == {"A": "b"}
        params = {"limit": 2, "page_id": page["next_page_id"]}
        rest = client.get(f"{url}/search", params=params, headers=user.headers).json()
        assert ([item["id"] for item in rest["items"]], rest["next_page_id"]) == (["c:1"], None)
        found = client.get(url, params={"id": ["c:1", "x:1"]}, headers=user.headers).json()
        assert [item and item["id"] for item in found] == ["c:1", None]
