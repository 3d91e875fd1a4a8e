"""`Idempotency-Key`: a repeated request gets the same response, and is executed one time."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import time_machine
from fastapi.testclient import TestClient
from sqlmodel import Session, SQLModel, func, select

from api.request.command_options import IdempotentRequest
from api.schemas.sandbox_urls import SandboxUrls
from api.schemas.v1.sandboxes import serialize_sandbox
from shared.clock import after, now
from shared.db.database import Database
from shared.models import IdempotencyKey, Sandbox, SandboxSpec, StartTask
from shared.sandboxes.deadlines import Durations
from shared.users import idempotency
from shared.warm_pool import start as sandbox_start
from tests.doubles import RecordingPublisher
from tests.due_checks import is_due
from tests.factories import VAULT, ApiUser, make_sandbox, make_spec
from tests.interleaving import overlap

SANDBOXES = "/api/v1/sandboxes"
CONVERSATIONS = "/api/v1/app-conversations"
KEY = "4f1c 'quoted' ~!"
URLS = SandboxUrls("http://service")

pytestmark = pytest.mark.usefixtures("spec", "model_key")


def _post(client: TestClient, user: ApiUser, path: str, key: str | None = KEY, **request: Any) -> Any:
    headers = user.headers | ({"Idempotency-Key": key} if key is not None else {})
    return client.post(path, headers=headers, **request)


def _post_with(client: TestClient, user: ApiUser, path: str, *keys: str) -> Any:
    headers = [*user.headers.items(), *(("Idempotency-Key", key) for key in keys)]
    return client.post(path, headers=headers, json={})


def _count(database: Database, table: type[SQLModel]) -> int:
    with database.reading() as session:
        return session.exec(select(func.count()).select_from(table)).one()


class TestRepeats:
    @pytest.mark.parametrize("path", [SANDBOXES, CONVERSATIONS])
    def test_repeat_gets_the_same_response_and_creates_nothing(
        self, client: TestClient, user: ApiUser, database: Database, publisher: RecordingPublisher, path: str
    ) -> None:
        request: dict[str, Any] = {"json": {"title": "A title", "secrets": {"TOKEN": "s3cr3t"}}}
        first = _post(client, user, path, **request)
        jobs = list(publisher.jobs)
        second = _post(client, user, path, **request)
        assert first.status_code == second.status_code == 200, second.text
        assert second.json() == first.json()
        assert (_count(database, Sandbox), publisher.jobs) == (1, jobs)

    def test_response_is_unchanged_after_later_changes(
        self, client: TestClient, user: ApiUser, database: Database
    ) -> None:
        first = _post(client, user, SANDBOXES).json()
        assert client.delete(f"{SANDBOXES}/{first['id']}", headers=user.headers).status_code == 200
        assert _post(client, user, SANDBOXES).json() == first
        assert _count(database, Sandbox) == 1

    @pytest.mark.parametrize("path", [CONVERSATIONS, "/api/conversations"])
    def test_response_is_repeated_after_the_deletion_of_the_conversation(
        self, client: TestClient, user: ApiUser, database: Database, path: str
    ) -> None:
        first = _post(client, user, path, json={})
        with database.transaction() as session:
            session.delete(session.exec(select(StartTask)).one())
        again = _post(client, user, path, params={"wait": 5}, json={})
        assert (again.status_code, again.json()) == (200, first.json())
        assert again.headers["Operation-Settled"] == "true"

    def test_bodies_are_compared_as_json(self, client: TestClient, user: ApiUser) -> None:
        bodies = ('{"title": "a", "public": true}', ' {"public":true,\n"title":"\\u0061"}')
        headers = user.headers | {"Idempotency-Key": KEY, "Content-Type": "application/json"}
        responses = [client.post(CONVERSATIONS, content=body, headers=headers) for body in bodies]
        assert [response.status_code for response in responses] == [200, 200]
        assert responses[0].json() == responses[1].json()

    @pytest.mark.parametrize("path", [SANDBOXES, CONVERSATIONS])
    def test_request_without_a_key_is_executed_each_time(
        self, client: TestClient, user: ApiUser, database: Database, path: str
    ) -> None:
        ids = {_post(client, user, path, key=None, json={}).json()["id"] for _ in range(2)}
        assert (len(ids), _count(database, IdempotencyKey)) == (2, 0)

    def test_keys_are_scoped_to_user_and_operation(
        self, client: TestClient, user: ApiUser, other_user: ApiUser, database: Database
    ) -> None:
        ids = {
            _post(client, owner, path, json={}).json()["id"]
            for owner in (user, other_user)
            for path in (SANDBOXES, CONVERSATIONS)
        }
        assert (len(ids), _count(database, IdempotencyKey)) == (4, 4)

    def test_key_is_ignored_by_other_posts(self, client: TestClient, user: ApiUser, database: Database) -> None:
        sandbox = make_sandbox(database, user)
        for path in (f"{SANDBOXES}/{sandbox.id}/pause", f"{SANDBOXES}/{sandbox.id}/resume"):
            assert [_post(client, user, path).status_code for _ in range(2)] == [200, 200]
        assert _post(client, user, "/api/settings", json={"language": "en"}).status_code == 200


class TestRejections:
    def test_key_with_another_body_is_rejected(self, client: TestClient, user: ApiUser, database: Database) -> None:
        assert _post(client, user, CONVERSATIONS, json={"title": "one"}).status_code == 200
        rejected = _post(client, user, CONVERSATIONS, json={"title": "two"})
        assert rejected.status_code == 422
        [entry] = rejected.json()["detail"]
        assert entry["loc"] == ["header", "Idempotency-Key"]
        assert (entry["type"], "another request" in entry["msg"]) == ("idempotency_key_reused", True)
        assert _count(database, StartTask) == 1

    def test_key_with_another_query_is_rejected(self, client: TestClient, user: ApiUser, database: Database) -> None:
        other = make_spec(database, "other:1", position=1)
        assert _post(client, user, SANDBOXES).status_code == 200
        assert _post(client, user, SANDBOXES, params={"sandbox_spec_id": other.id}).status_code == 422

    @pytest.mark.parametrize("key", ["", "k" * 201, "tab\tkey", "\xe9"])
    def test_invalid_keys_are_rejected(self, client: TestClient, user: ApiUser, database: Database, key: str) -> None:
        headers = [(name.encode(), value.encode()) for name, value in user.headers.items()]
        headers.append((b"Idempotency-Key", key.encode("latin-1")))
        assert client.post(SANDBOXES, headers=headers).status_code == 422
        assert _count(database, Sandbox) == 0

    @pytest.mark.parametrize("path", [SANDBOXES, CONVERSATIONS])
    def test_two_different_keys_are_rejected(
        self, client: TestClient, user: ApiUser, database: Database, path: str
    ) -> None:
        for keys in (("one", "two"), ("one", "one", "two"), ("one", "")):
            rejected = _post_with(client, user, path, *keys)
            assert rejected.status_code == 422, keys
            [entry] = rejected.json()["detail"]
            assert entry["loc"] == ["header", "Idempotency-Key"]
            assert (entry["type"], "several keys" in entry["msg"]) == ("several_idempotency_keys", True)
        assert _count(database, Sandbox) == _count(database, StartTask) == _count(database, IdempotencyKey) == 0

    def test_same_key_sent_twice_is_one_key(self, client: TestClient, user: ApiUser, database: Database) -> None:
        assert _post_with(client, user, SANDBOXES, KEY, KEY).json() == _post(client, user, SANDBOXES, json={}).json()
        assert _count(database, Sandbox) == 1

    def test_failed_request_is_not_stored(self, client: TestClient, user: ApiUser, database: Database) -> None:
        named = {"sandbox_spec_id": "later:1"}
        assert _post(client, user, SANDBOXES, params=named).status_code == 404
        make_spec(database, "later:1", position=1)
        assert _post(client, user, SANDBOXES, params=named).status_code == 200


class TestRetention:
    @pytest.mark.parametrize(("hours", "made"), [(23.9, 1), (24.1, 2)])
    def test_key_is_stored_for_a_day(
        self, client: TestClient, user: ApiUser, database: Database, hours: float, made: int
    ) -> None:
        _post(client, user, SANDBOXES)
        with time_machine.travel(after(hours * 3600)):
            responses = [_post(client, user, SANDBOXES).json() for _ in range(2)]
        assert responses[0] == responses[1]
        assert (_count(database, Sandbox), _count(database, IdempotencyKey)) == (made, 1)

    def test_expired_keys_are_deleted(self, client: TestClient, user: ApiUser, database: Database) -> None:
        _post(client, user, SANDBOXES, key="old")
        with time_machine.travel(after(23 * 3600)):
            _post(client, user, SANDBOXES, key="young")
        with time_machine.travel(after(25 * 3600)), database.transaction() as session:
            assert is_due(session, idempotency.EXPIRED)
            idempotency.delete_expired(session)
            assert not is_due(session, idempotency.EXPIRED)
        with database.reading() as session:
            assert session.exec(select(IdempotencyKey.key)).all() == ["young"]


class TestLimits:
    @pytest.mark.parametrize(("limits", "kept"), [({"MAX_KEYS": 2}, 2), ({"MAX_BYTES": 3_000}, 3)])
    def test_user_has_a_limited_number_of_responses(
        self,
        client: TestClient,
        user: ApiUser,
        other_user: ApiUser,
        database: Database,
        monkeypatch: pytest.MonkeyPatch,
        limits: dict[str, int],
        kept: int,
    ) -> None:
        for name, value in limits.items():
            monkeypatch.setattr(idempotency, name, value)
        for owner, number in ((other_user, 1), (user, 5)):
            for key in range(number):
                assert _post(client, owner, CONVERSATIONS, f"{key}", json={"title": "x" * 500}).status_code == 200
        with database.reading() as session:
            stored = select(IdempotencyKey.key, func.length(IdempotencyKey.answer))
            keys = dict(session.exec(stored.where(IdempotencyKey.owner_id == user.id)).all())
        assert sorted(keys) == [str(number) for number in range(5 - kept, 5)], keys
        assert _count(database, IdempotencyKey) == kept + 1

    def test_responses_from_before_the_clock_was_set_back_are_deleted_first(
        self, client: TestClient, user: ApiUser, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(idempotency, "MAX_KEYS", 2)
        with time_machine.travel(after(3600)):
            _post(client, user, SANDBOXES, key="before")
        for key in ("first", "second"):
            _post(client, user, SANDBOXES, key=key)
        with database.reading() as session:
            assert sorted(session.exec(select(IdempotencyKey.key)).all()) == ["first", "second"]

    def test_repeat_of_the_newest_request_gets_its_response(
        self, client: TestClient, user: ApiUser, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(idempotency, "MAX_BYTES", 1)  # less than one response
        first, second = (_post(client, user, SANDBOXES).json() for _ in range(2))
        assert (first, _count(database, Sandbox)) == (second, 1)


class TestSecrets:
    def test_stored_response_contains_no_secret_in_clear(
        self, client: TestClient, user: ApiUser, database: Database
    ) -> None:
        body = {"secrets": {"TOKEN": "s3cr3t"}}
        _post(client, user, SANDBOXES)
        _post(client, user, CONVERSATIONS, json=body)
        with database.reading() as session:
            rows = session.exec(select(IdempotencyKey)).all()
            keys = [VAULT.decrypt(row.session_key) for row in session.exec(select(Sandbox)).all()]
        stored = str([row.model_dump() for row in rows])
        assert len(rows) == len(keys) == 2
        assert [secret for secret in ("s3cr3t", *keys) if secret in stored] == []


class TestConcurrency:
    @pytest.mark.parametrize(("path", "table"), [(SANDBOXES, Sandbox), (CONVERSATIONS, StartTask)])
    def test_concurrent_repeats_are_executed_once(
        self, client: TestClient, user: ApiUser, database: Database, path: str, table: type[SQLModel]
    ) -> None:
        with ThreadPoolExecutor(6) as pool:
            responses = list(pool.map(lambda _: _post(client, user, path, json={}), range(12)))
        assert {response.status_code for response in responses} == {200}
        assert len({response.text for response in responses}) == 1
        assert _count(database, table) == _count(database, IdempotencyKey) == 1

    def test_concurrent_repeat_waits_for_the_commit_of_the_first(
        self, user: ApiUser, spec: SandboxSpec, database: Database
    ) -> None:
        def start(session: Session) -> bytes | None:
            idempotent = IdempotentRequest(VAULT, user.id, "POST /x", KEY, "the same")
            stored = idempotent.find(session)
            if stored is None:
                sandbox = sandbox_start.start(session, VAULT, owner_id=user.id, spec=spec, due_at=now()).sandbox
                idempotent.keep(session, serialize_sandbox(sandbox, Durations(), VAULT, URLS))
            return None if stored is None else bytes(stored.response.body)

        first, second = overlap(database, start, start)
        assert first is None
        assert second is not None
        assert _count(database, Sandbox) == 1

    def test_response_of_a_rolled_back_request_is_not_stored(
        self, user: ApiUser, spec: SandboxSpec, database: Database
    ) -> None:
        idempotent = IdempotentRequest(VAULT, user.id, "POST /x", KEY, "the same")

        def start_and_fail() -> None:
            with database.transaction() as session:
                assert idempotent.find(session) is None
                sandbox = sandbox_start.start(session, VAULT, owner_id=user.id, spec=spec, due_at=now()).sandbox
                idempotent.keep(session, serialize_sandbox(sandbox, Durations(), VAULT, URLS))
                raise RuntimeError("power cut")

        with pytest.raises(RuntimeError):
            start_and_fail()
        with database.transaction() as session:
            assert idempotent.find(session) is None
        assert _count(database, Sandbox) == 0
