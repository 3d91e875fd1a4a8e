"""Webhooks: reports are stored once, merged whatever their order, and only for the sandbox's own conversations."""

import itertools
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.exc import OperationalError
from sqlmodel import select

from shared.database import Database
from shared.ids import new_id
from shared.jobs import RefreshConversation
from shared.models import Conversation, Event, Sandbox
from shared.states import Stage
from shared.store import conversations
from tests.doubles import RecordingPublisher
from tests.factories import Person, make_conversation, make_sandbox, make_start_task, session_key_of

FIRST = datetime(2026, 1, 1, tzinfo=UTC)
JSON = {"Content-Type": "application/json"}
Seconds = float


@pytest.fixture
def sandbox(database: Database, user: Person) -> Sandbox:
    return make_sandbox(database, user)


@pytest.fixture
def conversation(database: Database, user: Person, sandbox: Sandbox) -> Conversation:
    return make_conversation(database, user, sandbox, created_at=FIRST, updated_at=FIRST)


@pytest.fixture
def tell(client: TestClient, sandbox: Sandbox) -> Callable[..., int]:
    """Sends a webhook as the sandbox does, and gives the status of the answer."""

    def tell(path: str, body: Any, key: str | None = None) -> int:
        headers = {"X-Session-API-Key": key or session_key_of(sandbox)} | JSON
        # In ASCII: half a surrogate pair can't be sent otherwise.
        content = json.dumps(body)
        return int(client.post(f"/api/v1/webhooks{path}", content=content, headers=headers).status_code)

    return tell


Tell = Callable[..., int]


def _event(kind: str = "MessageEvent", after: Seconds = 0, **fields: Any) -> dict[str, Any]:
    # As agent servers write it: a time without a zone.
    at = (FIRST + timedelta(seconds=after)).replace(tzinfo=None).isoformat()
    return {"id": new_id(), "kind": kind, "timestamp": at, "source": "agent", **fields}


def _update(key: str, value: Any, after: Seconds = 0) -> dict[str, Any]:
    return _event("ConversationStateUpdateEvent", after, key=key, value=value)


def _usage(cost: float, prompt: int, reasoning: int = 0, **fields: Any) -> dict[str, Any]:
    tokens = {"prompt_tokens": prompt, "completion_tokens": 1, "reasoning_tokens": reasoning, "context_window": 9}
    return {"model_name": "m", "accumulated_cost": cost, "accumulated_token_usage": tokens, **fields}


def _stats(**usages: Any) -> dict[str, Any]:
    return {"usage_to_metrics": usages}


def _info(conversation_id: str, after: Seconds = 0, **fields: Any) -> dict[str, Any]:
    dashed = "-".join(conversation_id[start:end] for start, end in itertools.pairwise((0, 8, 12, 16, 20, 32)))
    at = (FIRST + timedelta(seconds=after)).isoformat().replace("+00:00", "Z")
    return {
        "id": dashed,
        "agent": {"kind": "Agent", "llm": {"model": "openai/scripted"}},
        "workspace": {"kind": "LocalWorkspace", "working_dir": "/workspace/project"},
        "created_at": "2020-01-01T00:00:00Z",
        "updated_at": at,
        "title": None,
        "execution_status": "idle",
        "tags": {},
        "stats": _stats(),
        **fields,
    }


def _now(database: Database, conversation: Conversation) -> Conversation:
    with database.reading() as session:
        return session.get_one(Conversation, conversation.id)


def _stored(database: Database, conversation_id: str) -> list[Event]:
    with database.reading() as session:
        statement = select(Event).where(Event.conversation_id == conversation_id).order_by(Event.seq)  # type: ignore[arg-type]
        return list(session.exec(statement).all())


class TestWho:
    @pytest.mark.parametrize("path", ["/conversations", f"/events/{new_id()}"])
    def test_a_sandbox_must_say_who_it_is(self, client: TestClient, user: Person, path: str) -> None:
        url = f"/api/v1/webhooks{path}"
        for headers in ({}, user.headers, {"X-Session-API-Key": "wrong"}, {"X-Session-API-Key": user.key}):
            assert client.post(url, json=[], headers=headers).status_code == 401

    def test_it_reports_on_its_own_conversations_only(
        self, tell: Tell, conversation: Conversation, user: Person, database: Database
    ) -> None:
        key = session_key_of(make_sandbox(database, user))  # the same owner's, even
        assert tell(f"/events/{conversation.id}", [_event()], key) == 404
        assert tell("/conversations", _info(conversation.id, title="Mine now"), key) == 404
        assert _stored(database, conversation.id) == []
        assert _now(database, conversation) == conversation

    def test_it_can_not_claim_what_is_being_started_elsewhere(
        self, tell: Tell, user: Person, database: Database
    ) -> None:
        task = make_start_task(database, user, make_sandbox(database, user))
        assert tell(f"/events/{task.conversation_id}", [_event()]) == 404

    def test_it_does_not_bring_back_what_has_failed(
        self, tell: Tell, user: Person, sandbox: Sandbox, database: Database
    ) -> None:
        task = make_start_task(database, user, sandbox, stage=Stage.ERROR)
        assert tell(f"/events/{task.conversation_id}", [_event()]) == 404

    def test_what_is_being_started_stays_hidden(
        self, tell: Tell, user: Person, sandbox: Sandbox, database: Database
    ) -> None:
        task = make_start_task(database, user, sandbox, stage=Stage.STARTING_CONVERSATION)
        assert tell(f"/events/{task.conversation_id}", [_event()]) == 200
        with database.reading() as session:
            assert not session.get_one(Conversation, task.conversation_id).listed

    def test_a_conversation_made_in_the_sandbox_is_adopted(
        self, tell: Tell, client: TestClient, user: Person, sandbox: Sandbox, database: Database
    ) -> None:
        conversation_id = new_id()
        assert tell(f"/events/{conversation_id}", [_event()]) == 200
        assert tell("/conversations", _info(conversation_id)) == 200
        [shown] = client.get("/api/v1/app-conversations/search", headers=user.headers).json()["items"]
        assert (shown["id"], shown["sandbox_id"]) == (conversation_id, sandbox.id)
        assert shown["title"] == f"Conversation {conversation_id[:5]}"
        assert len(_stored(database, conversation_id)) == 1

    def test_a_sandbox_of_the_pool_has_no_conversations(self, tell: Tell, user: Person, database: Database) -> None:
        member = make_sandbox(database, user, owner_id=None)
        assert tell(f"/events/{new_id()}", [_event()], session_key_of(member)) == 404

    def test_two_bring_the_same_news(
        self, tell: Tell, database: Database, monkeypatch: pytest.MonkeyPatch, conversation: Conversation
    ) -> None:
        find, looks = conversations.find, [0]

        def look_too_early(*args: Any, **kwargs: Any) -> Conversation | None:
            looks[0] += 1
            return None if looks[0] == 1 else find(*args, **kwargs)

        monkeypatch.setattr(conversations, "find", look_too_early)
        assert tell(f"/events/{conversation.id}", [_event()]) == 200
        assert len(_stored(database, conversation.id)) == 1


class TestEvents:
    def test_each_is_stored_once(self, tell: Tell, conversation: Conversation, database: Database) -> None:
        events = [_event(after=number, text="a\0b") for number in range(3)]
        for batch in (events[:2], events, [*events, events[0]]):
            assert tell(f"/events/{conversation.id}", batch) == 200
        stored = _stored(database, conversation.id)
        assert [event.body for event in stored] == events
        assert [event.timestamp for event in stored] == [FIRST + timedelta(seconds=n) for n in range(3)]

    def test_ids_are_unique_within_a_conversation_only(
        self, tell: Tell, conversation: Conversation, user: Person, sandbox: Sandbox, database: Database
    ) -> None:
        twin, event = make_conversation(database, user, sandbox), _event()
        for conversation_id in (conversation.id, twin.id):
            assert tell(f"/events/{conversation_id}", [event]) == 200
            assert len(_stored(database, conversation_id)) == 1

    @pytest.mark.parametrize(
        "wrong",
        [
            {"id": None},
            {"id": ""},
            {"id": 7},
            {"id": "x" * 65},
            {"id": "a\0b"},
            {"id": "\ud800"},
            {"kind": None},
            {"kind": "K" * 65},
            {"timestamp": None},
            {"timestamp": "yesterday"},
            {"timestamp": 1767225600},
            {"timestamp": "0001-01-01T00:00:00+14:00"},
        ],
        ids=str,
    )
    def test_a_malformed_one_is_said_to_be_so(
        self, client: TestClient, sandbox: Sandbox, conversation: Conversation, database: Database, wrong: Any
    ) -> None:
        answer = client.post(
            f"/api/v1/webhooks/events/{conversation.id}",
            content=json.dumps([_event(), _event() | wrong]),
            headers={"X-Session-API-Key": session_key_of(sandbox)} | JSON,
        )
        assert answer.status_code == 422
        [entry] = answer.json()["detail"]
        assert entry["loc"] == ["body", "1"]
        assert next(iter(wrong)) in entry["msg"]
        assert _stored(database, conversation.id) == []  # all or nothing: the batch is sent again

    @pytest.mark.parametrize("body", [{}, None, "text", [1], [None], [[]], [_event(deep=[[[]]]), 3]], ids=str)
    def test_other_shapes_are_refused(self, tell: Tell, conversation: Conversation, body: Any) -> None:
        assert tell(f"/events/{conversation.id}", body) == 422

    def test_what_json_can_not_carry_is_refused(
        self, client: TestClient, sandbox: Sandbox, conversation: Conversation
    ) -> None:
        for value in ("NaN", "1e999", "[" * 200 + "]" * 200):
            answer = client.post(
                f"/api/v1/webhooks/events/{conversation.id}",
                content=f'[{{"id":"a","kind":"K","timestamp":"2026-01-01T00:00:00","x":{value}}}]',
                headers={"X-Session-API-Key": session_key_of(sandbox)} | JSON,
            )
            assert answer.status_code == 422

    def test_thousands_at_once(self, tell: Tell, conversation: Conversation, database: Database) -> None:
        events = [_event(after=number) for number in range(15_000)]
        assert tell(f"/events/{conversation.id}", events) == 200
        assert len(_stored(database, conversation.id)) == 15_000

    def test_a_store_that_is_down_is_no_success(
        self, tell: Tell, conversation: Conversation, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any, **__: Any) -> None:
            raise OperationalError("INSERT", {}, Exception("gone"))

        event = _event()
        with monkeypatch.context() as down:
            down.setattr("shared.store.events.store", fail)
            assert tell(f"/events/{conversation.id}", [event]) == 503
        assert tell(f"/events/{conversation.id}", [event]) == 200  # sent again
        assert len(_stored(database, conversation.id)) == 1


class TestStatus:
    def test_the_latest_wins_in_any_order(
        self, tell: Tell, conversation: Conversation, sandbox: Sandbox, user: Person, database: Database
    ) -> None:
        told: list[tuple[str, Any]] = [
            ("/events/{}", [_update("full_state", {"execution_status": "idle"}, 1)]),
            ("/events/{}", [_update("execution_status", "running", 2)]),
            ("/conversations", {"after": 3, "execution_status": "paused"}),
            ("/events/{}", [_update("execution_status", "finished", 4)]),
        ]
        for order in itertools.permutations(told):
            each = make_conversation(database, user, sandbox, updated_at=FIRST)
            for path, body in order:
                sent = _info(each.id, **body) if isinstance(body, dict) else [dict(e, id=new_id()) for e in body]
                assert tell(path.format(each.id), sent) == 200
            row = _now(database, each)
            assert row.execution_status == "finished"
            assert row.execution_status_at == FIRST + timedelta(seconds=4)
            assert row.updated_at > FIRST

    @pytest.mark.parametrize("status", ["deleting", "dancing", 7, None, ["idle"]])
    def test_what_is_no_status_changes_none(
        self, tell: Tell, conversation: Conversation, database: Database, status: Any
    ) -> None:
        assert tell(f"/events/{conversation.id}", [_update("execution_status", "running", 1)]) == 200
        assert tell(f"/events/{conversation.id}", [_update("execution_status", status, 2)]) == 200
        assert tell("/conversations", _info(conversation.id, 3, execution_status=status)) == 200
        assert _now(database, conversation).execution_status == "running"


class TestConversationReports:
    def test_what_is_known_is_taken_over(self, tell: Tell, conversation: Conversation, database: Database) -> None:
        stats = _stats(agent=_usage(0.5, 10, 3), condenser=_usage(0.25, 5))
        info = _info(conversation.id, tags={"a": "b"}, stats=stats, execution_status="running", extra={"x": 1})
        assert tell("/conversations", info) == 200
        row = _now(database, conversation)
        assert (row.llm_model, row.agent_kind, row.working_dir) == (
            "openai/scripted",
            "openhands",
            "/workspace/project",
        )
        assert row.tags == {"a": "b"}
        assert row.metrics is not None
        assert row.metrics["accumulated_cost"] == 0.75
        assert row.metrics["accumulated_token_usage"]["prompt_tokens"] == 15
        assert row.metrics["accumulated_token_usage"]["reasoning_tokens"] == 3
        assert row.created_at == FIRST  # not when the agent server made it, and not now
        assert (row.public, row.title_settled) == (None, False)

    def test_nothing_is_needed_but_an_id(self, tell: Tell, conversation: Conversation, database: Database) -> None:
        assert tell("/conversations", {"id": conversation.id}) == 200
        row = _now(database, conversation)
        assert (row.title, row.updated_at) == (conversation.title, FIRST)

    @pytest.mark.parametrize("body", [[], {}, {"id": 7}, {"id": "nonsense"}, None, "text"], ids=str)
    def test_without_an_id_it_is_refused(self, tell: Tell, body: Any) -> None:
        assert tell("/conversations", body) == 422

    def test_strange_values_are_no_news(self, tell: Tell, conversation: Conversation, database: Database) -> None:
        for strange in (7, "text", [1], {"a": 1}, None, True):
            fields = ("agent", "workspace", "stats", "tags", "parent_conversation_id", "updated_at")
            assert tell("/conversations", _info(conversation.id) | dict.fromkeys(fields, strange)) == 200
        usage = {"accumulated_cost": -1, "accumulated_token_usage": {"prompt_tokens": 10**400}, "model_name": 3}
        for stats in (_stats(agent=usage), _stats(agent=None), _stats(agent={"accumulated_token_usage": []})):
            assert tell(f"/events/{conversation.id}", [_update("stats", stats)]) == 200
        row = _now(database, conversation)
        assert row.tags == {}
        assert row.parent_id is None

    def test_unstorable_text_is_made_storable(
        self, tell: Tell, conversation: Conversation, client: TestClient, user: Person
    ) -> None:
        info = _info(conversation.id, title="a\0b\ud800" + "x" * 600, tags={"k\0": "v\ud800"})
        info["agent"]["llm"]["model"] = "m\0"
        assert tell("/conversations", info) == 200
        shown = client.get(f"/api/v1/app-conversations/{conversation.id}", headers=user.headers).json()
        assert shown["title"].startswith("a\N{REPLACEMENT CHARACTER}b?")
        assert len(shown["title"]) == 500

    def test_tags_are_merged(self, tell: Tell, conversation: Conversation, database: Database) -> None:
        for tags in ({"a": "1", "b": "1"}, {"b": "2", "c": "2"}):
            assert tell("/conversations", _info(conversation.id, tags=tags)) == 200
        assert _now(database, conversation).tags == {"a": "1", "b": "2", "c": "2"}

    def test_a_title_settles_once(self, tell: Tell, conversation: Conversation, database: Database) -> None:
        for title in (None, "", "The agent's", "Another"):
            assert tell("/conversations", _info(conversation.id, title=title)) == 200
        row = _now(database, conversation)
        assert (row.title, row.title_settled) == ("The agent's", True)

    def test_a_persons_title_stays(self, tell: Tell, user: Person, sandbox: Sandbox, database: Database) -> None:
        mine = make_conversation(database, user, sandbox, title="Mine", title_settled=True)
        assert tell("/conversations", _info(mine.id, title="The agent's")) == 200
        assert _now(database, mine).title == "Mine"

    def test_an_agent_switches_its_model(self, tell: Tell, conversation: Conversation, database: Database) -> None:
        for kind, model, failed in (
            ("SwitchLLMObservation", "openai/second", False),
            ("SwitchLLMObservation", "openai/failed", True),
            ("TerminalObservation", "openai/none", False),
        ):
            observation = {"kind": kind, "active_model": model, "is_error": failed}
            event = _event("ObservationEvent", observation=observation)
            assert tell(f"/events/{conversation.id}", [event]) == 200
        assert _now(database, conversation).llm_model == "openai/second"


class TestMetrics:
    def test_they_never_go_backwards(self, tell: Tell, conversation: Conversation, database: Database) -> None:
        snapshots = [(0.0, 22), (0.0, 11), (0.2, 33), (0.1, 44)]
        for cost, prompt in snapshots:
            event = _update("stats", _stats(agent=_usage(cost, prompt)))
            assert tell(f"/events/{conversation.id}", [event]) == 200
        metrics = _now(database, conversation).metrics
        assert metrics is not None
        assert (metrics["accumulated_cost"], metrics["accumulated_token_usage"]["prompt_tokens"]) == (0.2, 33)

    def test_both_webhooks_count_alike(
        self, tell: Tell, client: TestClient, user: Person, conversation: Conversation
    ) -> None:
        stats = _stats(agent=_usage(0.5, 10), condenser=_usage(0.25, 5), **{"profile:x": _usage(0.25, 1)})
        seen = []
        for path, body in (
            ("/conversations", _info(conversation.id, stats=stats)),
            (f"/events/{conversation.id}", [_update("stats", stats)]),
            (f"/events/{conversation.id}", [_update("full_state", {"stats": stats})]),
        ):
            assert tell(path, body) == 200
            shown = client.get(f"/api/v1/app-conversations/{conversation.id}", headers=user.headers).json()
            seen.append(shown["metrics"])
        assert seen[0] == seen[1] == seen[2]
        assert seen[0]["accumulated_cost"] == 1.0
        assert seen[0]["accumulated_token_usage"]["completion_tokens"] == 3


class TestAskingAWorker:
    def test_for_the_title(
        self,
        tell: Tell,
        conversation: Conversation,
        sandbox: Sandbox,
        publisher: RecordingPublisher,
        database: Database,
    ) -> None:
        assert tell(f"/events/{conversation.id}", [_event(), _update("stats", _stats())]) == 200
        assert publisher.jobs == []
        assert tell(f"/events/{conversation.id}", [_update("execution_status", "running")]) == 200
        assert publisher.jobs == [RefreshConversation(conversation.id, sandbox.node_id)]
        assert _now(database, conversation).due_at is not None

    def test_not_for_a_settled_one(
        self, tell: Tell, user: Person, sandbox: Sandbox, publisher: RecordingPublisher, database: Database
    ) -> None:
        titled = make_conversation(database, user, sandbox, title_settled=True)
        assert tell(f"/events/{titled.id}", [_update("execution_status", "running")]) == 200
        assert publisher.jobs == []
        assert _now(database, titled).due_at is None

    def test_to_stop_at_the_budget(
        self, tell: Tell, user: Person, sandbox: Sandbox, publisher: RecordingPublisher, database: Database
    ) -> None:
        row = make_conversation(database, user, sandbox, title_settled=True, max_budget=1.0)
        path = f"/events/{row.id}"
        assert tell(path, [_update("execution_status", "running", 1)]) == 200
        assert tell(path, [_update("stats", _stats(agent=_usage(0.99, 1)), 2)]) == 200
        assert publisher.jobs == []
        assert tell(path, [_update("stats", _stats(agent=_usage(0.99, 1), condenser=_usage(0.01, 1)), 3)]) == 200
        assert publisher.jobs == [RefreshConversation(row.id, sandbox.node_id)]
        assert tell(path, [_update("execution_status", "paused", 4)]) == 200
        assert len(publisher.jobs) == 1
