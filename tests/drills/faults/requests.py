"""What users and agent servers send."""

from datetime import datetime
from typing import Any

import httpx
from sqlalchemy import or_, update
from sqlmodel import col, select

from shared.models import (
    ApiKey,
    Conversation,
    Sandbox,
    StartTask,
)
from tests.api.agent_reports import told_conversation, told_event, told_stats, told_update, told_usage
from tests.drills.faults.runner import PROCESSES, Runner
from tests.drills.wishes import Outcome, Verb
from tests.factories import session_key_of
from tests.services import http
from tests.waiting import eventually

SANDBOXES = "/api/v1/sandboxes"
CONVERSATIONS = "/api/v1/app-conversations"
HELLO = [{"type": "text", "text": "Hello"}]
MESSAGE = {"role": "user", "content": HELLO, "run": True}
EVENTS = [told_event(), told_event("ActionEvent"), told_update("execution_status", "finished")]
SETTINGS = {"llm_model": "openai/none", "llm_api_key": "unused", "max_iterations": 77}
PROVIDERS = {"provider_tokens": {"github": {"token": "git-token", "host": "https://git.example"}}}


def ask(
    runner: Runner, method: str, path: str, verb: Verb | None = None, key: str | None = None, **options: Any
) -> httpx.Response | None:
    """A request, in the history if it is a wish for a sandbox or a conversation; None: no answer."""
    headers = runner.client.person.headers | ({"Idempotency-Key": key} if key else {})
    call = runner.client.history.invoke(verb, None) if verb else 0
    try:
        answer = http.request(method, runner.service.url + path, headers=headers, timeout=30, **options)
    except httpx.TransportError:
        return None
    if verb and answer.is_success:
        runner.client.history.answer(call, Outcome.OK, verb, str(answer.json()["id"]))
    return answer


def start_once(runner: Runner, key: str) -> None:
    """Wish for a sandbox under a key."""
    ask(runner, "POST", SANDBOXES, Verb.START, key)


def converse(runner: Runner, sandbox_id: str) -> None:
    """Wish for a conversation in this sandbox, with all that a start can have, under a key."""
    more = {"selected_repository": "acme/app", "git_provider": "github", "title": "A talk"}
    _converse(runner, sandbox_id, more)


def converse_untitled(runner: Runner, sandbox_id: str) -> None:
    """The same, and its title is to be made."""
    _converse(runner, sandbox_id, {})


def _converse(runner: Runner, sandbox_id: str, more: dict[str, str]) -> None:
    wish = {"sandbox_id": sandbox_id, "initial_message": MESSAGE} | more
    ask(runner, "POST", CONVERSATIONS, Verb.CONVERSE, sandbox_id, json=wish)


def converse_also(runner: Runner, sandbox_id: str) -> None:
    """Wish for another conversation in this sandbox."""
    ask(runner, "POST", CONVERSATIONS, Verb.CONVERSE, json={"sandbox_id": sandbox_id, "initial_message": MESSAGE})


def delete_conversation(runner: Runner, _sandbox_id: str) -> None:
    """Wish the conversation of `converse` away; once it is gone, nothing is done."""
    with runner.service.database.reading() as session:
        tasks = [task for task in session.exec(select(StartTask)).all() if task.request["title"]]
    if not tasks:
        return
    [task] = tasks
    call = runner.client.history.invoke(Verb.FORGET, task.id)
    answer = ask(runner, "DELETE", f"{CONVERSATIONS}/{task.conversation_id}")
    if answer is not None:
        assert answer.status_code == 200, answer.text
        runner.client.history.answer(call, Outcome.OK, Verb.FORGET, task.id)


def delete_last_conversation(runner: Runner, sandbox_id: str) -> None:
    """The same, until its worker has seen to it, or somebody has died."""
    delete_conversation(runner, sandbox_id)
    eventually(lambda: any(map(runner.is_dead, PROCESSES)) or not _awaits_worker(runner))


def _awaits_worker(runner: Runner) -> bool:
    """Whether a conversation wants a worker, or has one."""
    wanted = or_(col(Conversation.due_at).is_not(None), col(Conversation.lease_until).is_not(None))
    with runner.service.database.reading() as session:
        return session.exec(select(Conversation.id).where(wanted)).first() is not None


def say(runner: Runner, _sandbox_id: str) -> None:
    """Say something, twice the same, to the conversation that is there."""
    with runner.service.database.reading() as session:
        conversation_id = session.exec(select(Conversation.id)).one()
    for number in range(2):
        ask(
            runner,
            "POST",
            f"/api/v1/conversations/{conversation_id}/pending-messages",
            key=f"{conversation_id}-{number}",
            json={"content": HELLO},
        )


def cancel_start(runner: Runner, _sandbox_id: str) -> None:
    """Withdraw the start that is on its way."""
    with runner.service.database.reading() as session:
        task_id = session.exec(select(StartTask.id)).one()
    call = runner.client.history.invoke(Verb.CANCEL, task_id)
    answer = ask(runner, "POST", f"{CONVERSATIONS}/start-tasks/{task_id}/cancel")
    if answer is not None:
        assert answer.status_code in (200, 409), answer.text
        outcome = Outcome.OK if answer.is_success else Outcome.FAILED
        runner.client.history.answer(call, outcome, Verb.CANCEL, task_id)


def start_another(runner: Runner, sandbox_id: str) -> None:
    """Wish for a sandbox for which another one is paused."""
    call = runner.client.history.invoke(Verb.PAUSE, sandbox_id)
    answer = ask(runner, "POST", SANDBOXES, Verb.START)
    if answer is not None:
        assert answer.json()["paused_sandbox_ids"] == [sandbox_id]
        runner.client.history.answer(call, Outcome.OK, Verb.PAUSE, sandbox_id)


def store_settings(runner: Runner, _subject: str = "") -> None:
    """Store settings."""
    ask(runner, "POST", "/api/settings", json=SETTINGS)


def store_tokens(runner: Runner, _subject: str = "") -> None:
    """Store a git token."""
    ask(runner, "POST", "/api/add-git-providers", json=PROVIDERS)


def list_sandboxes(runner: Runner, _subject: str) -> None:
    """Read something."""
    ask(runner, "GET", f"{SANDBOXES}/search")


def use_key_at(runner: Runner, at: datetime | None) -> None:
    """Let the user's key have been used at that time."""
    with runner.service.database.transaction() as session:
        session.execute(update(ApiKey).values(last_used_at=at))


def report(runner: Runner, sandbox_id: str) -> None:
    """What an agent server reports of its conversation."""
    _report(runner, sandbox_id, EVENTS)


def report_work(runner: Runner, sandbox_id: str) -> None:
    """The agent works on, and spends more."""
    spent = told_stats(agent=told_usage(cost=3, prompt=1))
    _report(runner, sandbox_id, [told_update("execution_status", "running"), told_update("stats", spent)])


def tell_of(runner: Runner, verb: Verb, sandbox_id: str) -> None:
    """Let the history say that this was asked for and answered."""
    history = runner.client.history
    history.answer(history.invoke(verb, None), Outcome.OK, verb, sandbox_id)


def _report(runner: Runner, sandbox_id: str, events: list[dict[str, Any]]) -> None:
    """Tell, in vain if the API is away."""
    with runner.service.database.reading() as session:
        headers = {"X-Session-API-Key": session_key_of(session.get_one(Sandbox, sandbox_id))}
        conversation_id = session.exec(select(Conversation.id)).one()
    for path, body in (
        ("conversations", told_conversation(conversation_id)),
        (f"events/{conversation_id}", events),
    ):
        try:
            http.post(f"{runner.service.url}/api/v1/webhooks/{path}", headers=headers, json=body, timeout=30)
        except httpx.TransportError:
            return
