"""Traffic to sandboxes, by the sandbox path and the web UI's proxy. Requests are in flight when a process dies."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import httpx
from sqlalchemy import update
from sqlmodel import col

from shared.clock import now
from shared.models import Sandbox
from shared.states import Status
from tests.drills.faults.operation import Operation
from tests.drills.faults.operations.agent import assert_forwarded_once, events_path
from tests.drills.faults.operations.conversation import with_conversation
from tests.drills.faults.operations.sandbox import paused, running
from tests.drills.faults.runner import Runner
from tests.drills.faults.user_requests import LONG, MESSAGE, SANDBOXES, send
from tests.drills.requests import Outcome, Verb
from tests.factories import session_key_of
from tests.services import http
from tests.waiting import eventually

# Longer than the time for which the service holds a request.
TIMEOUT_SECONDS = 90
SANDBOX_PATH = "GET /sandbox/{sandbox_id}"
FORWARD = frozenset({"agent_server.forward"})


@dataclass(frozen=True)
class InFlight:
    """A request, the API process that it was sent to, and the generation of the desired state at that time."""

    response: Future[httpx.Response | None]
    api: int
    generation: int


# The requests in flight, by sandbox.
IN_FLIGHT: dict[str, InFlight] = {}
SENDERS = ThreadPoolExecutor(thread_name_prefix="sender")


# --- reads: they resume a sandbox and count as activity ---------------------------------------------------------------


def unused(runner: Runner) -> str:
    """A running sandbox without recent activity."""
    sandbox_id = running(runner)
    with runner.service.database.transaction() as session:
        session.execute(update(Sandbox).where(col(Sandbox.id) == sandbox_id).values(last_active_at=now() - LONG))
    return sandbox_id


def _proxied(runner: Runner, sandbox_id: str) -> None:
    """Send a request to the sandbox's agent server without waiting for the response."""
    generation = _row(runner, sandbox_id).generation
    IN_FLIGHT[sandbox_id] = InFlight(SENDERS.submit(_send, runner, sandbox_id), runner.service.pid("api"), generation)


def _assert_resumed_once(runner: Runner, sandbox_id: str) -> None:
    """Assert a response, and that the sandbox resumed once, by one change of its desired state."""
    proxied = _served(runner, sandbox_id)
    assert _row(runner, sandbox_id).generation == proxied.generation + 1
    response = send(runner, "GET", f"{SANDBOXES}/{sandbox_id}/transitions")
    assert response is not None
    statuses = [transition["to_status"] for transition in response.json()]
    assert statuses == [Status.STARTING, Status.RUNNING, Status.PAUSED, Status.RUNNING]


def _assert_activity_recorded(runner: Runner, sandbox_id: str) -> None:
    """Assert a response, and that the activity is recorded, by the next request if a death lost it.

    The service responds before it records the activity, so a process may die between the two.
    """
    proxied = _served(runner, sandbox_id)
    if proxied.api != runner.service.pid("api"):
        assert _send(runner, sandbox_id) is not None
    eventually(lambda: _row(runner, sandbox_id).last_active_at > now() - LONG / 2)
    assert _row(runner, sandbox_id).generation == proxied.generation


def _served(runner: Runner, sandbox_id: str) -> InFlight:
    """Wait for the response; send the request again if the process that served it died."""
    proxied = IN_FLIGHT.pop(sandbox_id)
    response = proxied.response.result()
    if response is None and proxied.api != runner.service.pid("api"):
        response = _send(runner, sandbox_id)
    assert response is not None
    assert (response.status_code, response.text) == (200, "0")
    return proxied


def _send(runner: Runner, sandbox_id: str) -> httpx.Response | None:
    """Send a request, which the history records as a resume; return None without a response."""
    url, history = f"{runner.service.url}/sandbox/{sandbox_id}/api/conversations/count", runner.client.history
    call = history.invoke(Verb.RESUME, sandbox_id)
    try:
        response = http.get(url, headers=runner.client.user.headers, timeout=TIMEOUT_SECONDS)
    except httpx.TransportError:
        return None
    if response.is_success:
        history.complete(call, Outcome.OK, Verb.RESUME, sandbox_id)
    return response


def _row(runner: Runner, sandbox_id: str) -> Sandbox:
    with runner.service.database.reading() as session:
        return session.get_one(Sandbox, sandbox_id)


# --- writing ----------------------------------------------------------------------------------------------------------


def _post_on_path(runner: Runner, sandbox_id: str) -> None:
    """Post a message to the agent server by the sandbox path."""
    path = f"/sandbox/{sandbox_id}{events_path(runner)}"
    runner.responses.append(send(runner, "POST", path, json=MESSAGE))


def _post_by_proxy(runner: Runner, sandbox_id: str) -> None:
    """Post a message to the agent server by the proxy that the web UI uses."""
    with runner.service.database.reading() as session:
        key = session_key_of(session.get_one(Sandbox, sandbox_id))
    envelope = {
        "host": f"{runner.service.url}/sandbox/{sandbox_id}",
        "method": "POST",
        "path": events_path(runner),
        "headers": {"X-Session-API-Key": key},
        "body": MESSAGE,
    }
    runner.responses.append(send(runner, "POST", "/api/cloud-proxy", json=envelope))


def _assert_message_forwarded_once(runner: Runner, sandbox_id: str) -> None:
    assert_forwarded_once(runner, sandbox_id, events_path(runner))


OPERATIONS: Mapping[str, Operation] = {
    "wake": Operation(
        owns=frozenset({SANDBOX_PATH, "sandboxes.resume"}), prepare=paused, act=_proxied, verify=_assert_resumed_once
    ),
    "traffic": Operation(
        owns=frozenset({SANDBOX_PATH}), prepare=unused, act=_proxied, verify=_assert_activity_recorded
    ),
    "post-on-the-sandbox-path": Operation(
        owns=frozenset({"POST /sandbox/{sandbox_id}"}),
        prepare=with_conversation,
        act=_post_on_path,
        verify=_assert_message_forwarded_once,
        writes=FORWARD,
    ),
    "post-by-the-cloud-proxy": Operation(
        owns=frozenset({"POST /cloud-proxy"}),
        prepare=with_conversation,
        act=_post_by_proxy,
        verify=_assert_message_forwarded_once,
        writes=FORWARD,
    ),
}
