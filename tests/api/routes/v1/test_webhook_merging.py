"""Webhooks: the values that conversations take from reports in any order, and the jobs that reports enqueue."""

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.clock import now
from shared.db.database import Database
from shared.ids import new_id
from shared.models import Conversation, Sandbox
from shared.queue.jobs import RefreshConversation
from tests.api.agent_reports import FIRST, conversation_report, event_report, stats_report, update_report, usage_report
from tests.doubles import RecordingPublisher
from tests.factories import ApiUser, make_conversation
from tests.rows import as_stored

JSON = {"Content-Type": "application/json"}
Post = Callable[..., int]


class TestStatus:
    def test_latest_status_wins_in_any_order(
        self, post: Post, conversation: Conversation, sandbox: Sandbox, user: ApiUser, database: Database
    ) -> None:
        reports: list[tuple[str, Any]] = [
            ("/events/{}", [update_report("full_state", {"execution_status": "idle"}, 1)]),
            ("/events/{}", [update_report("execution_status", "running", 2)]),
            ("/conversations", {"after": 3, "execution_status": "paused"}),
            ("/events/{}", [update_report("execution_status", "finished", 4)]),
        ]
        for order in itertools.permutations(reports):
            each = make_conversation(database, user, sandbox, updated_at=FIRST)
            for path, body in order:
                sent = (
                    conversation_report(each.id, **body)
                    if isinstance(body, dict)
                    else [dict(e, id=new_id()) for e in body]
                )
                assert post(path.format(each.id), sent) == 200
            row = as_stored(database, each)
            assert row.execution_status == "finished"
            assert row.execution_status_at == FIRST + timedelta(seconds=4)
            assert row.updated_at > FIRST

    def test_report_from_the_future_is_replaced_by_the_next(
        self, post: Post, conversation: Conversation, database: Database
    ) -> None:
        far = "9999-12-31T23:59:59"
        running = conversation_report(conversation.id, execution_status="running")
        assert post("/conversations", running | {"updated_at": f"{far}Z"}) == 200
        assert as_stored(database, conversation).execution_status == "running"
        finished = conversation_report(conversation.id, execution_status="finished")
        assert post("/conversations", finished | {"updated_at": now().isoformat()}) == 200
        assert as_stored(database, conversation).execution_status == "finished"

        event = update_report("execution_status", "running") | {"timestamp": far}
        assert post(f"/events/{conversation.id}", [event]) == 200
        assert as_stored(database, conversation).execution_status == "running"
        event = update_report("execution_status", "error") | {"timestamp": now().replace(tzinfo=None).isoformat()}
        assert post(f"/events/{conversation.id}", [event]) == 200
        assert as_stored(database, conversation).execution_status == "error"

    def test_unknown_status_is_ignored(self, post: Post, conversation: Conversation, database: Database) -> None:
        assert post(f"/events/{conversation.id}", [update_report("execution_status", "running", 1)]) == 200
        for status in ("deleting", "dancing", 7, None, ["idle"]):
            assert post(f"/events/{conversation.id}", [update_report("execution_status", status, 2)]) == 200
            assert post("/conversations", conversation_report(conversation.id, 3, execution_status=status)) == 200
        assert as_stored(database, conversation).execution_status == "running"

    @pytest.mark.parametrize("time", ["9999-12-31T23:59:59", "0001-01-01T00:00:00", "2999-01-01T00:00:00+14:00"])
    def test_report_with_an_implausible_time_does_not_block_later_reports(
        self, post: Post, client: TestClient, conversation: Conversation, user: ApiUser, database: Database, time: str
    ) -> None:
        odd = update_report("execution_status", "running") | {"timestamp": time}
        assert post(f"/events/{conversation.id}", [odd]) == 200
        assert post("/conversations", conversation_report(conversation.id) | {"updated_at": time}) == 200
        at = as_stored(database, conversation).execution_status_at
        assert at is not None
        assert at.year >= 2000
        assert at <= now() + timedelta(seconds=20)
        later = update_report("execution_status", "finished") | {"timestamp": now().isoformat()}
        assert post(f"/events/{conversation.id}", [later]) == 200
        assert as_stored(database, conversation).execution_status == "finished"
        path = f"/api/v1/conversation/{conversation.id}/events/search"
        listed = client.get(path, headers=user.headers).json()["items"]
        assert {item["id"] for item in listed} == {odd["id"], later["id"]}

    def test_status_from_the_future_is_replaced(
        self, post: Post, user: ApiUser, sandbox: Sandbox, database: Database
    ) -> None:
        stuck = make_conversation(
            database, user, sandbox, execution_status="running", execution_status_at=now() + timedelta(days=365)
        )
        assert post(f"/events/{stuck.id}", [update_report("execution_status", "finished", 1)]) == 200
        assert as_stored(database, stuck).execution_status == "finished"


class TestConversationReports:
    def test_report_s_known_fields_are_stored(self, post: Post, conversation: Conversation, database: Database) -> None:
        stats = stats_report(agent=usage_report(0.5, 10, 3), condenser=usage_report(0.25, 5))
        info = conversation_report(
            conversation.id, tags={"a": "b"}, stats=stats, execution_status="running", extra={"x": 1}
        )
        assert post("/conversations", info) == 200
        row = as_stored(database, conversation)
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
        assert row.created_at == FIRST  # neither the time of the agent server nor the present
        assert (row.public, row.title_settled) == (None, False)

    def test_report_needs_only_an_id(self, post: Post, conversation: Conversation, database: Database) -> None:
        assert post("/conversations", {"id": conversation.id}) == 200
        row = as_stored(database, conversation)
        assert (row.title, row.updated_at) == (conversation.title, FIRST)

    def test_report_without_an_id_is_refused(self, post: Post) -> None:
        bodies: list[Any] = [[], {}, {"id": 7}, {"id": "nonsense"}, None, "text"]
        for body in bodies:
            assert post("/conversations", body) == 422, body

    def test_invalid_values_of_a_report_are_ignored(
        self, post: Post, conversation: Conversation, database: Database
    ) -> None:
        for strange in (7, "text", [1], {"a": 1}, None, True):
            fields = ("agent", "workspace", "stats", "tags", "parent_conversation_id", "updated_at")
            assert post("/conversations", conversation_report(conversation.id) | dict.fromkeys(fields, strange)) == 200
        usage = {"accumulated_cost": -1, "accumulated_token_usage": {"prompt_tokens": 10**399}, "model_name": 3}
        for stats in (
            stats_report(agent=usage),
            stats_report(agent=None),
            stats_report(agent={"accumulated_token_usage": []}),
        ):
            assert post(f"/events/{conversation.id}", [update_report("stats", stats)]) == 200
        row = as_stored(database, conversation)
        assert row.tags == {}
        assert row.parent_id is None

    def test_unstorable_text_is_made_storable(
        self, post: Post, conversation: Conversation, client: TestClient, user: ApiUser
    ) -> None:
        info = conversation_report(conversation.id, title="a\0b\ud800" + "x" * 600, tags={"k\0": "v\ud800"})
        info["agent"]["llm"]["model"] = "m\0"
        assert post("/conversations", info) == 200
        shown = client.get(f"/api/v1/app-conversations/{conversation.id}", headers=user.headers).json()
        assert shown["title"].startswith("a\N{REPLACEMENT CHARACTER}b?")
        assert len(shown["title"]) == 500

    def test_tags_are_merged(self, post: Post, conversation: Conversation, database: Database) -> None:
        for tags in ({"a": "1", "b": "1"}, {"b": "2", "c": "2"}):
            assert post("/conversations", conversation_report(conversation.id, tags=tags)) == 200
        assert as_stored(database, conversation).tags == {"a": "1", "b": "2", "c": "2"}

    @pytest.mark.parametrize(
        ("tags", "before", "after"),
        [
            ({"automationid": "7"}, None, "automation"),
            ({"automationrunid": "7"}, "slack", "slack"),
            ({"automation": "7"}, None, None),
        ],
    )
    def test_tags_of_an_automation_set_the_trigger(
        self,
        post: Post,
        conversation: Conversation,
        database: Database,
        tags: dict[str, str],
        before: str | None,
        after: str | None,
    ) -> None:
        with database.transaction() as session:
            session.get_one(Conversation, conversation.id).trigger = before
        assert post("/conversations", conversation_report(conversation.id, tags=tags)) == 200
        assert as_stored(database, conversation).trigger == after

    def test_tags_beyond_the_limits_are_left_out(
        self, post: Post, conversation: Conversation, database: Database
    ) -> None:
        for tags in (
            {str(number): "x" for number in range(101)},
            {f"{number:0256}": "🦩" * 256 for number in range(50)},
        ):
            assert post("/conversations", conversation_report(conversation.id, tags=tags)) == 200
            stored = as_stored(database, conversation).tags
            assert len(stored) == 100
            assert set(stored.values()) == {"x"}

    def test_long_tags_are_limited_together(self, post: Post, conversation: Conversation, database: Database) -> None:
        tags = {f"{number:0256}": "🦩" * 256 for number in range(50)}
        assert post("/conversations", conversation_report(conversation.id, tags=tags)) == 200
        assert as_stored(database, conversation).tags == dict(list(tags.items())[:8])

    def test_title_is_set_automatically_once(self, post: Post, conversation: Conversation, database: Database) -> None:
        for title in (None, "", "The agent's", "Another"):
            assert post("/conversations", conversation_report(conversation.id, title=title)) == 200
        row = as_stored(database, conversation)
        assert (row.title, row.title_settled) == ("The agent's", True)

    def test_title_set_by_a_user_is_kept(self, post: Post, user: ApiUser, sandbox: Sandbox, database: Database) -> None:
        mine = make_conversation(database, user, sandbox, title="Mine", title_settled=True)
        assert post("/conversations", conversation_report(mine.id, title="The agent's")) == 200
        assert as_stored(database, mine).title == "Mine"

    def test_model_switched_by_the_agent_is_stored(
        self, post: Post, conversation: Conversation, database: Database
    ) -> None:
        for kind, model, failed in (
            ("SwitchLLMObservation", "openai/second", False),
            ("SwitchLLMObservation", "openai/failed", True),
            ("TerminalObservation", "openai/none", False),
        ):
            observation = {"kind": kind, "active_model": model, "is_error": failed}
            event = event_report("ObservationEvent", observation=observation)
            assert post(f"/events/{conversation.id}", [event]) == 200
        assert as_stored(database, conversation).llm_model == "openai/second"


class TestMetrics:
    def test_metrics_never_decrease(self, post: Post, conversation: Conversation, database: Database) -> None:
        snapshots = [(0.0, 22), (0.0, 11), (0.2, 33), (0.1, 44)]
        for cost, prompt in snapshots:
            event = update_report("stats", stats_report(agent=usage_report(cost, prompt)))
            assert post(f"/events/{conversation.id}", [event]) == 200
        metrics = as_stored(database, conversation).metrics
        assert metrics is not None
        assert (metrics["accumulated_cost"], metrics["accumulated_token_usage"]["prompt_tokens"]) == (0.2, 33)

    def test_metrics_of_both_webhooks_are_the_same(
        self, post: Post, client: TestClient, user: ApiUser, conversation: Conversation
    ) -> None:
        stats = stats_report(
            agent=usage_report(0.5, 10), condenser=usage_report(0.25, 5), **{"profile:x": usage_report(0.25, 1)}
        )
        seen = []
        for path, body in (
            ("/conversations", conversation_report(conversation.id, stats=stats)),
            (f"/events/{conversation.id}", [update_report("stats", stats)]),
            (f"/events/{conversation.id}", [update_report("full_state", {"stats": stats})]),
        ):
            assert post(path, body) == 200
            shown = client.get(f"/api/v1/app-conversations/{conversation.id}", headers=user.headers).json()
            seen.append(shown["metrics"])
        assert seen[0] == seen[1] == seen[2]
        assert seen[0]["accumulated_cost"] == 1.0
        assert seen[0]["accumulated_token_usage"]["completion_tokens"] == 3


class TestWorkerJobs:
    def test_job_is_enqueued_for_a_missing_title(
        self,
        post: Post,
        conversation: Conversation,
        sandbox: Sandbox,
        publisher: RecordingPublisher,
        database: Database,
    ) -> None:
        assert post(f"/events/{conversation.id}", [event_report(), update_report("stats", stats_report())]) == 200
        assert publisher.jobs == []
        assert post(f"/events/{conversation.id}", [update_report("execution_status", "running")]) == 200
        assert publisher.jobs == [RefreshConversation(conversation.id, sandbox.node_id)]
        assert as_stored(database, conversation).due_at is not None

    def test_no_job_is_enqueued_for_a_title_that_is_set(
        self, post: Post, user: ApiUser, sandbox: Sandbox, publisher: RecordingPublisher, database: Database
    ) -> None:
        titled = make_conversation(database, user, sandbox, title_settled=True)
        assert post(f"/events/{titled.id}", [update_report("execution_status", "idle")]) == 200
        assert publisher.jobs == []
        assert as_stored(database, titled).due_at is None

    def test_job_is_enqueued_at_the_budget(
        self, post: Post, user: ApiUser, sandbox: Sandbox, publisher: RecordingPublisher, database: Database
    ) -> None:
        row = make_conversation(database, user, sandbox, title_settled=True, max_budget=1.0)
        path = f"/events/{row.id}"
        assert post(path, [update_report("execution_status", "running", 1)]) == 200
        assert post(path, [update_report("stats", stats_report(agent=usage_report(0.99, 1)), 2)]) == 200
        assert publisher.jobs == []
        assert (
            post(
                path,
                [update_report("stats", stats_report(agent=usage_report(0.99, 1), condenser=usage_report(0.01, 1)), 3)],
            )
            == 200
        )
        assert publisher.jobs == [RefreshConversation(row.id, sandbox.node_id)]
        assert post(path, [update_report("execution_status", "paused", 4)]) == 200
        assert len(publisher.jobs) == 1
