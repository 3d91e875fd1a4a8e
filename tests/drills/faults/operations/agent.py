"""The API's own requests to an agent server: a message, another model, an interruption, a command.

The API stores none of them and sends none twice. So the agent server gets each request at most once, and exactly once
if the client got a success. Without a response, the client cannot tell. A message that must arrive exactly once is sent
as a pending message with an idempotency key.
"""

from collections.abc import Mapping
from uuid import UUID

import httpx
from sqlmodel import select

from shared.models import Conversation, Sandbox
from shared.states import Status
from tests.drills.engine_listing import sandbox_name
from tests.drills.faults.operation import Act, Operation
from tests.drills.faults.operations.conversation import conversation_id, count_messages, with_conversation
from tests.drills.faults.runner import Runner
from tests.drills.faults.user_requests import CONVERSATIONS, MESSAGE, SANDBOXES, send
from tests.drills.requests import Outcome, Verb
from tests.services import http
from tests.waiting import eventually

ROUTE = "/app-conversations/{conversation_id}"
# The profile that `lanes` saves.
PROFILE, MODEL = "titles", "openai/titles"
ACP_MODEL = "another"
BASH = "/api/bash/execute_bash_command"
# The number of commands that each sandbox ran before the operation; its start runs some.
COMMANDS: dict[str, int] = {}


# --- counts of requests -----------------------------------------------------------------------------------------------


def count_requests(runner: Runner, sandbox_id: str, path: str) -> int:
    """The number of POST requests to this path in the tiny agent server's log.

    Ids with and without dashes are equal.
    """
    lines = runner.engine.docker("logs", sandbox_name(sandbox_id)).replace("-", "").splitlines()
    return lines.count(f"POST {path}".replace("-", ""))


def assert_forwarded_once(runner: Runner, sandbox_id: str, path: str, *, before: int = 0) -> None:
    """Assert that the agent server got the operation's request once, or not at all if the API died before sending it.

    Args:
        before: the number of requests to the path before the operation.
    """
    [response] = runner.responses
    assert response is None or response.status_code == 200, response.text
    reached = count_requests(runner, sandbox_id, path) - before
    assert reached == (0 if _died_before(runner) else 1)
    assert response is None or reached == 1


def _died_before(runner: Runner) -> bool:
    """Whether the API process died at the point before it sent the request."""
    return runner.died_at is not None and runner.died_at.endswith(".before") and "/agent_server." in runner.died_at


def conversation_path(runner: Runner, *words: str) -> str:
    """A path below the only conversation, at the agent server."""
    return "/".join(["/api/conversations", str(UUID(conversation_id(runner))), *words])


def events_path(runner: Runner) -> str:
    """The path at which the agent server accepts messages."""
    return conversation_path(runner, "events")


# --- messages ---------------------------------------------------------------------------------------------------------


def _send_message(runner: Runner, _sandbox_id: str) -> None:
    path = f"{CONVERSATIONS}/{conversation_id(runner)}/send-message"
    runner.responses.append(send(runner, "POST", path, json=MESSAGE))


def _assert_sent_at_most_once(runner: Runner, sandbox_id: str) -> None:
    """Assert that the agent server has the message once, or not at all if the API died before sending it."""
    assert_forwarded_once(runner, sandbox_id, events_path(runner))
    said = 1 + count_requests(runner, sandbox_id, events_path(runner))
    assert count_messages(runner, sandbox_id, conversation_id(runner)) == said


# --- models -----------------------------------------------------------------------------------------------------------


def _switch_profile(runner: Runner, _sandbox_id: str) -> None:
    runner.responses.append(_request_switch(runner, "switch_profile", {"profile_name": PROFILE}))


def _switch_acp_model(runner: Runner, _sandbox_id: str) -> None:
    runner.responses.append(_request_switch(runner, "switch_acp_model", {"model": ACP_MODEL}))


def _request_switch(runner: Runner, operation: str, body: dict[str, str]) -> httpx.Response | None:
    return send(runner, "POST", f"{CONVERSATIONS}/{conversation_id(runner)}/{operation}", json=body)


def _switched(operation: str, word: str, body: dict[str, str], model: str) -> Act:
    """Assert one request at the agent server, the model in the row if there was a response, and a working retry."""

    def verify(runner: Runner, sandbox_id: str) -> None:
        path = conversation_path(runner, word)
        assert_forwarded_once(runner, sandbox_id, path)
        [response] = runner.responses
        assert response is None or _model(runner) == model
        before = count_requests(runner, sandbox_id, path)
        again = _request_switch(runner, operation, body)
        assert again is not None
        assert again.status_code == 200, again.text
        assert (count_requests(runner, sandbox_id, path), _model(runner)) == (before + 1, model)

    return verify


def _model(runner: Runner) -> str | None:
    with runner.service.database.reading() as session:
        return session.exec(select(Conversation.llm_model)).one()


# --- interruption -----------------------------------------------------------------------------------------------------


def _press_stop(runner: Runner, sandbox_id: str) -> None:
    """Press the web UI's stop button, which interrupts the agents, or pauses the sandbox if none of them runs."""
    browser = {"Origin": runner.service.url, "Cookie": _sign_in(runner)}
    call = runner.client.history.invoke(Verb.PAUSE, sandbox_id)
    url = f"{runner.service.url}{SANDBOXES}/{sandbox_id}/pause"
    try:
        runner.responses.append(http.post(url, headers=browser, timeout=30))
    except httpx.TransportError:
        runner.responses.append(None)
    # The response does not say whether the sandbox was paused.
    runner.client.history.complete(call, Outcome.LOST, Verb.PAUSE, sandbox_id)


def _sign_in(runner: Runner) -> str:
    form, headers = {"api_key": runner.client.user.key}, {"Origin": runner.service.url}
    response = http.post(f"{runner.service.url}/login", data=form, headers=headers, timeout=30)
    assert response.status_code == 303, response.text
    return response.headers["Set-Cookie"].partition(";")[0]


def _assert_interrupted(runner: Runner, sandbox_id: str) -> None:
    """Assert one interruption in a running sandbox, and that a second press interrupts no agent."""
    path = conversation_path(runner, "interrupt")
    assert_forwarded_once(runner, sandbox_id, path)
    assert _status(runner, sandbox_id) == Status.RUNNING
    _press_stop(runner, sandbox_id)
    eventually(runner.is_at_rest)
    assert count_requests(runner, sandbox_id, path) == 1


def _status(runner: Runner, sandbox_id: str) -> str:
    with runner.service.database.reading() as session:
        return session.get_one(Sandbox, sandbox_id).status


# --- commands ---------------------------------------------------------------------------------------------------------


def _list_files(runner: Runner, sandbox_id: str) -> None:
    """List files, for which the API runs a shell command in the sandbox."""
    COMMANDS[sandbox_id] = count_requests(runner, sandbox_id, BASH)
    runner.responses.append(_request_files(runner))


def _request_files(runner: Runner) -> httpx.Response | None:
    return send(runner, "GET", f"{CONVERSATIONS}/{conversation_id(runner)}/files?path=/workspace")


def _assert_run_at_most_once(runner: Runner, sandbox_id: str) -> None:
    """Assert that the command ran at most once, and that a retry gets a response."""
    assert_forwarded_once(runner, sandbox_id, BASH, before=COMMANDS.pop(sandbox_id))
    again = _request_files(runner)
    assert again is not None
    assert again.status_code == 200, again.text


# ----------------------------------------------------------------------------------------------------------------------

OPERATIONS: Mapping[str, Operation] = {
    "send-message": Operation(
        owns=frozenset({f"POST {ROUTE}/send-message"}),
        prepare=with_conversation,
        act=_send_message,
        verify=_assert_sent_at_most_once,
    ),
    "switch-profile": Operation(
        owns=frozenset({f"POST {ROUTE}/switch_profile"}),
        prepare=with_conversation,
        act=_switch_profile,
        verify=_switched("switch_profile", "switch_llm", {"profile_name": PROFILE}, MODEL),
    ),
    "switch-acp-model": Operation(
        owns=frozenset({f"POST {ROUTE}/switch_acp_model"}),
        prepare=with_conversation,
        act=_switch_acp_model,
        verify=_switched("switch_acp_model", "switch_acp_model", {"model": ACP_MODEL}, ACP_MODEL),
    ),
    "interrupt": Operation(
        owns=frozenset({"POST /sandboxes/{sandbox_id}/pause"}),
        prepare=with_conversation,
        act=_press_stop,
        verify=_assert_interrupted,
        writes=frozenset({"agent_server.interrupt"}),
    ),
    "list-files": Operation(
        owns=frozenset({f"GET {ROUTE}/files"}),
        prepare=with_conversation,
        act=_list_files,
        verify=_assert_run_at_most_once,
    ),
}
