"""The agent server of a sandbox, over HTTP: the few of its routes that a worker calls. Bodies are never logged."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import httpx

from shared import failpoints
from worker.agent_server_errors import AgentServerRefused, AgentServerUnreachable, WrongServer
from worker.patience import PatientTransport
from worker.redaction import Redact, redacting
from worker.refusal_texts import refusal_text

# Seconds.
PROBE_SECONDS = 3.0
CONTROL_SECONDS = 20.0
UPLOAD_SECONDS = 60.0
CREATE_SECONDS = 120.0
# What a command may take beyond its own limit: the server's way of ending it takes 2 s.
COMMAND_GRACE_SECONDS = 15.0
# The server drops a connection that was idle for 5 s: a request must not meet it doing so.
KEEPALIVE_SECONDS = 4.0

EVENTS_A_PAGE = 100
LONGEST_DETAIL = 2000


@dataclass(frozen=True)
class CommandResult:
    """What became of a shell command. `exit_code` -1: it ran out of time or never started."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def output(self) -> str:
        """Both streams, standard output first."""
        return self.stdout + self.stderr


def open_client() -> httpx.Client:
    """A client for any number of agent servers and threads; it keeps connections for reuse.

    The environment's proxies are ignored: sandboxes are neighbours, not the internet.
    """
    transport = PatientTransport(KEEPALIVE_SECONDS)
    return httpx.Client(trust_env=False, timeout=CONTROL_SECONDS, transport=transport)


class AgentServer:
    """One sandbox's agent server. All methods raise `worker.agent_server_errors`; ids may be dashed or not.

    Args:
        base_url: where its port 8000 is reachable, without a path.
        session_key: the sandbox's key.
        client: see `open_client`.
        redact: hides the secrets that a refusal might quote; the session key is hidden in any case.
    """

    def __init__(
        self, base_url: str, session_key: str, client: httpx.Client, redact: Redact = lambda text: text
    ) -> None:
        self._api = base_url.rstrip("/") + "/api"
        self._headers = {"X-Session-API-Key": session_key}
        self._client = client
        self._redact = redact
        self._hide_key = redacting([session_key])

    def is_ready(self) -> bool:
        """Whether the server takes this sandbox's key, and only that. False: not yet, or not any more.

        The second probe finds a server that lost its configuration: without keys it lets everybody in.

        Raises:
            WrongServer: something else listens there.
        """
        if not self.answers():
            return False
        if self._probe({}) == 200:
            raise WrongServer("the agent server answers without a key")
        return True

    def answers(self) -> bool:
        """Whether the server takes this sandbox's key: half of `is_ready`, for one that was ready before.

        Raises:
            WrongServer: something else listens there.
        """
        status = self._probe(self._headers)
        if status is None or status >= 500 or status == 429:
            return False
        if status != 200:
            raise WrongServer(f"the address answered {status} to the sandbox's key")
        return True

    def is_dormant(self) -> bool | None:
        """Whether the server waits for `initialize` (wire contract 3.4); None: it does not answer, or is at it."""
        try:
            answer = self._client.get(self._api + "/init", timeout=PROBE_SECONDS)
        except httpx.TransportError:
            return None
        if answer.status_code == 404:  # it was not told to wait, or is too old to know how
            return False
        state = _state(answer)
        return None if state is None or state == "initializing" else state == "dormant"

    def warm_up(self) -> None:
        """Have a dormant server build its routes now: it does so when it first looks for one, which takes 70 ms.

        It knows no such path, and looks for it through all that it has. What it says does not matter.
        """
        with suppress(httpx.TransportError):
            self._client.get(self._api + "/nowhere", timeout=PROBE_SECONDS)

    def initialize(self, boot_key: str, config: dict[str, Any]) -> bool:
        """Tell a dormant server whose it is. One that is being told just now takes no notice.

        Args:
            boot_key: what it booted with as its secret key; it is no use afterwards.
            config: session_api_keys, secret_key, webhooks and whatever else differs from its boot.

        Returns:
            Whether it was dormant, and has taken them.

        Raises:
            WrongServer: it knows another secret key, perhaps from this very config.
        """
        try:
            headers = {"X-Init-API-Key": boot_key}
            self._call("take its keys", "POST", "/init", json=config, extra=headers, timeout=CONTROL_SECONDS)
        except AgentServerRefused as refusal:
            if refusal.status not in (400, 404):
                raise
            return False
        return True

    def run_command(self, command: str, cwd: str | None = None, timeout: float = 30.0) -> CommandResult:
        """Run a shell command (`/bin/sh`) and wait for it, `timeout` seconds at most.

        The server writes the command's text and output to files in the sandbox: no secret may be in them.
        Giving up here does not end the command there.
        """
        body = {"command": command, "cwd": cwd, "timeout": max(1, round(timeout))}
        answer = self._json(
            "run a command",
            "POST",
            "/bash/execute_bash_command",
            json=body,
            timeout=timeout + COMMAND_GRACE_SECONDS,
        )
        return CommandResult(answer["exit_code"], answer["stdout"] or "", answer["stderr"] or "")

    def upload(self, path: str, content: bytes) -> None:
        """Write a file in the sandbox, with its folders; it is readable by all who can enter the folder."""
        self._call(
            "take a file",
            "POST",
            "/file/upload",
            params={"path": path},
            files={"file": ("file", content)},
            timeout=UPLOAD_SECONDS,
        )

    def keep_profile(self, name: str, llm: Mapping[str, Any]) -> None:
        """Keep an LLM's configuration under a name that conversations may use, in place of what had it.

        The server encrypts its secrets.
        """
        body = {"llm": llm, "include_secrets": True}
        self._call("keep a profile", "POST", f"/profiles/{name}", json=body)

    def create_conversation(self, body: dict[str, Any]) -> dict[str, Any]:
        """Create the conversation of `agent_request.build_request`, or return it if its id exists already.

        An existing one is returned as it is: the rest of the body, its initial message too, is ignored.
        """
        aim = "start the conversation"
        return self._json(aim, "POST", "/conversations", json=body, timeout=CREATE_SECONDS)

    def get_conversation(self, conversation_id: str) -> dict[str, Any] | None:
        """The conversation as the server knows it (title, execution_status, stats, …); None if it doesn't."""
        return self._json_if_known("show the conversation", "GET", f"/conversations/{conversation_id}")

    def send_message(self, conversation_id: str, message: dict[str, Any]) -> None:
        """Give the conversation a message, {role, content, run}."""
        self._call("take a message", "POST", f"/conversations/{conversation_id}/events", json=message)

    def list_messages(self, conversation_id: str) -> list[dict[str, Any]]:
        """The newest messages of users, up to a hundred events, newest first."""
        params: dict[str, str | int] = {
            "kind": "MessageEvent",
            "source": "user",
            "sort_order": "TIMESTAMP_DESC",
            "limit": EVENTS_A_PAGE,
        }
        path = f"/conversations/{conversation_id}/events/search"
        messages: list[dict[str, Any]] = self._json("list messages", "GET", path, params=params)["items"]
        return messages

    def run(self, conversation_id: str) -> bool:
        """Let the agent go on. False: it is at work already."""
        try:
            self._call("run the conversation", "POST", f"/conversations/{conversation_id}/run")
        except AgentServerRefused as refusal:
            if refusal.status != 409:
                raise
            return False
        return True

    def rename_conversation(self, conversation_id: str, title: str) -> bool:
        """Set the title. False: no such conversation."""
        aim, path = "rename the conversation", f"/conversations/{conversation_id}"
        return self._json_if_known(aim, "PATCH", path, json={"title": title}) is not None

    def interrupt(self, conversation_id: str) -> bool:
        """Stop the agent in the middle of its work; a message makes it go on. False: no such conversation."""
        path = f"/conversations/{conversation_id}/interrupt"
        return self._json_if_known("interrupt the conversation", "POST", path) is not None

    def delete_conversation(self, conversation_id: str) -> bool:
        """Delete the conversation, not its files. False: no such conversation."""
        path = f"/conversations/{conversation_id}"
        return self._json_if_known("delete the conversation", "DELETE", path) is not None

    def find_running(self) -> list[str]:
        """The dashed ids of up to 100 conversations whose agent is at work."""
        page = self._json(
            "list conversations", "GET", "/conversations/search", params={"status": "running", "limit": 100}
        )
        return [item["id"] for item in page["items"]]

    def list_events(self, conversation_id: str) -> Iterator[dict[str, Any]]:
        """The conversation's stored events, oldest first: for what a webhook could not deliver."""
        path = f"/conversations/{conversation_id}/events/search"
        params: dict[str, str | int] = {"limit": EVENTS_A_PAGE, "sort_order": "TIMESTAMP"}
        while True:
            page = self._json("list events", "GET", path, params=params)
            yield from page["items"]
            if not page.get("next_page_id"):
                return
            params["page_id"] = page["next_page_id"]

    def _probe(self, headers: dict[str, str]) -> int | None:
        try:
            url = self._api + "/conversations/count"
            return self._client.get(url, headers=headers, timeout=PROBE_SECONDS).status_code
        except httpx.TransportError:
            return None

    def _json(self, aim: str, method: str, path: str, **options: Any) -> dict[str, Any]:
        response = self._call(aim, method, path, **options)
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if isinstance(answer, dict):
            return answer
        raise WrongServer(f"what answers when asked to {aim} is not an agent server")

    def _json_if_known(self, aim: str, method: str, path: str, **options: Any) -> dict[str, Any] | None:
        try:
            return self._json(aim, method, path, **options)
        except AgentServerRefused as refusal:
            if refusal.status == 404:
                return None
            raise

    def _call(
        self, aim: str, method: str, path: str, *, extra: Mapping[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        headers = {**self._headers, **(extra or {})}
        with _transport_errors(aim), _point(method, aim):
            response = self._client.request(method, self._api + path, headers=headers, **options)
        if response.is_success:
            return response
        if response.status_code == 401:
            raise WrongServer("the agent server does not take the sandbox's key")
        detail = self._hide_key(self._redact(refusal_text(response)))[:LONGEST_DETAIL]
        if response.status_code >= 500 or response.status_code == 429:
            raise AgentServerUnreachable(f"the agent server could not {aim}: {response.status_code} {detail}")
        raise AgentServerRefused(aim, response.status_code, detail)


def _point(method: str, aim: str) -> AbstractContextManager[None]:
    return nullcontext() if method == "GET" else failpoints.around(f"agent_server.{aim.replace(' ', '_')}")


@contextmanager
def _transport_errors(aim: str) -> Iterator[None]:
    try:
        yield
    except httpx.TransportError as error:
        # Only the kind of the error: its text and its request may quote what was sent.
        raise AgentServerUnreachable(f"no answer when asked to {aim}: {type(error).__name__}") from None


def _state(response: httpx.Response) -> str | None:
    try:
        body = response.json() if response.is_success else None
    except ValueError:
        return None
    return str(body.get("state")) if isinstance(body, dict) else None
