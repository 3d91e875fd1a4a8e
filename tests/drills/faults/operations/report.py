"""Reports of agent servers by webhooks."""

from collections.abc import Mapping
from typing import Any

import httpx
from sqlalchemy import update
from sqlmodel import select

from shared.models import Conversation, Event, Sandbox
from tests.api.agent_reports import conversation_report, event_report, stats_report, update_report, usage_report
from tests.drills.faults.operation import Operation
from tests.drills.faults.operations.agent import conversation_path, count_requests
from tests.drills.faults.operations.conversation import conversation_id, with_conversation
from tests.drills.faults.runner import Runner
from tests.factories import session_key_of
from tests.services import http
from tests.waiting import eventually

EVENTS = [event_report(), event_report("ActionEvent"), update_report("execution_status", "finished")]
REPORTS = "POST /webhooks/events/{conversation_id}"


def spent(runner: Runner) -> str:
    """A sandbox with a conversation in progress that has exceeded its budget."""
    sandbox_id = with_conversation(runner)
    with runner.service.database.transaction() as session:
        session.execute(
            update(Conversation).values(
                max_budget=1, metrics={"accumulated_cost": 2}, execution_status="running", title_settled=False
            )
        )
    return sandbox_id


def _report(runner: Runner, sandbox_id: str) -> None:
    _send(runner, sandbox_id, EVENTS)


def _report_work(runner: Runner, sandbox_id: str) -> None:
    """Report that the agent continues and spends more."""
    cost = stats_report(agent=usage_report(cost=3, prompt=1))
    _send(runner, sandbox_id, [update_report("execution_status", "running"), update_report("stats", cost)])


def _send(runner: Runner, sandbox_id: str, events: list[dict[str, Any]]) -> None:
    """Send both webhooks, ignoring an API that is down."""
    conversation = conversation_id(runner)
    with runner.service.database.reading() as session:
        headers = {"X-Session-API-Key": session_key_of(session.get_one(Sandbox, sandbox_id))}
    for path, body in (("conversations", conversation_report(conversation)), (f"events/{conversation}", events)):
        url = f"{runner.service.url}/api/v1/webhooks/{path}"
        try:
            runner.responses.append(http.post(url, headers=headers, json=body, timeout=30))
        except httpx.TransportError:
            runner.responses.append(None)
            return


def _assert_stored_once(runner: Runner, sandbox_id: str) -> None:
    """Assert, after a second report, that each event is stored once."""
    _report(runner, sandbox_id)
    eventually(runner.is_at_rest)
    with runner.service.database.reading() as session:
        assert sorted(session.exec(select(Event.id)).all()) == sorted(event["id"] for event in EVENTS)
        assert session.exec(select(Conversation.title)).all() == ["A title"]


def _assert_interrupted(runner: Runner, sandbox_id: str) -> None:
    """Assert that an acknowledged report interrupts the agent, or else a retry."""
    if not all(response and response.is_success for response in runner.responses):
        _report_work(runner, sandbox_id)
    path = conversation_path(runner, "interrupt")
    eventually(lambda: count_requests(runner, sandbox_id, path) >= 1)


OPERATIONS: Mapping[str, Operation] = {
    "reports": Operation(
        owns=frozenset({"POST /webhooks/conversations", REPORTS}),
        prepare=with_conversation,
        act=_report,
        verify=_assert_stored_once,
    ),
    "spent-budget": Operation(
        owns=frozenset({REPORTS, "conversations.refresh"}),
        prepare=spent,
        act=_report_work,
        verify=_assert_interrupted,
    ),
}
