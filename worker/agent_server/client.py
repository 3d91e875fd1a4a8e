"""The agent server of a sandbox, over HTTP: the few of its routes that a worker calls. Bodies are never logged.

Its answers may be hostile: `worker.agent_server.exchange` reads them, and `worker.agent_server.responses` has the
shapes that are accepted.
"""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import httpx

from shared.observability import failpoints
from shared.redaction import Redact, redacting
from worker.agent_server.error_text import refusal_text
from worker.agent_server.errors import AgentServerRefused, AgentServerUnreachable, WrongServer
from worker.agent_server.exchange import (
    CONTROL_SECONDS,
    MAX_BYTES,
    Answer,
    Shape,
    exchange,
    exchange_status,
    read_shape,
)
from worker.agent_server.responses import (
    AnyPage,
    CommandOutcome,
    CommandResult,
    ConversationShape,
    Document,
    InitState,
    Message,
    MessagePage,
    RunningPage,
)

# Seconds.
PROBE_SECONDS = 3.0
# A newer desired state waits for it.
INITIALIZE_SECONDS = 10.0
UPLOAD_SECONDS = 60.0
CREATE_SECONDS = 120.0
# What a command may take beyond its own limit: the server's way of ending it takes 2 s.
COMMAND_GRACE_SECONDS = 15.0
# A page has few conversations, as each may be large.
RUNNING_A_PAGE = 10
MAX_RUNNING_PAGES = 10
# One message may hold images: a page has one, and the max size is that of a message that the API takes, and some more.
MAX_MESSAGES = 1000
MAX_MESSAGE_BYTES = 5 * 1024 * 1024
MAX_DETAIL_LENGTH = 2000


class AgentServer:
    """One sandbox's agent server. All methods raise `worker.agent_server.errors`; ids may be dashed or not.

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
        if status is None:
            return False
        if status != 200:
            raise WrongServer(f"the address answered {status} to the sandbox's key")
        return True

    def is_dormant(self) -> bool | None:
        """Whether the server waits for `initialize` (wire contract 3.4); None: it does not answer, or is at it."""
        try:
            answer = exchange(self._client, "GET", self._api + "/init", headers={}, seconds=PROBE_SECONDS)
            if answer.status == 404:  # it was not told to wait, or is too old to know how
                return False
            state = read_shape(answer.content, InitState)[0].state if answer.is_success else "initializing"
        except (httpx.HTTPError, WrongServer, ValueError):
            return None
        return None if state == "initializing" else state == "dormant"

    def is_open(self) -> bool | None:
        """Whether the server answers without a key, so that it was given none; None: it does not answer."""
        status = self._probe({})
        return None if status is None else status == 200

    def warm_up(self) -> None:
        """Have a dormant server build its routes now: it does so when it first looks for one, which takes 70 ms.

        It knows no such path, and looks for it through all that it has. What it says does not matter.
        """
        with suppress(httpx.HTTPError):
            exchange_status(self._client, "GET", self._api + "/nowhere", headers={}, seconds=PROBE_SECONDS)

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
            self._call("take its keys", "POST", "/init", json=config, extra=headers, seconds=INITIALIZE_SECONDS)
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
        path, seconds = "/bash/execute_bash_command", timeout + COMMAND_GRACE_SECONDS
        outcome, _ = self._read(CommandOutcome, "run a command", "POST", path, json=body, seconds=seconds)
        return outcome.result

    def upload(self, path: str, content: bytes) -> None:
        """Write a file in the sandbox, with its folders; it is readable by all who can enter the folder."""
        files = {"file": ("file", content)}
        self._call("take a file", "POST", "/file/upload", params={"path": path}, files=files, seconds=UPLOAD_SECONDS)

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
        made, _ = self._read(Document, aim, "POST", "/conversations", json=body, seconds=CREATE_SECONDS)
        return made.root

    def get_conversation(self, conversation_id: str) -> dict[str, Any] | None:
        """The conversation as the server knows it; None if it doesn't.

        Only `title` and `last_user_message_id` are checked: both are texts, None, or not there.
        """
        path = f"/conversations/{conversation_id}"
        known = self._read_if_known(ConversationShape, "show the conversation", "GET", path)
        return None if known is None else known[1]

    def send_message(self, conversation_id: str, message: dict[str, Any]) -> None:
        """Give the conversation a message, {role, content, run}."""
        self._call("take a message", "POST", f"/conversations/{conversation_id}/events", json=message)

    def list_messages(self, conversation_id: str) -> Iterator[Message]:
        """The newest messages of users, up to a thousand, newest first; each is asked for when it is wanted."""
        path = f"/conversations/{conversation_id}/events/search"
        params = {"kind": "MessageEvent", "source": "user", "sort_order": "TIMESTAMP_DESC", "limit": 1}
        pages = self._pages(MessagePage, "list messages", path, params, MAX_MESSAGES, max_bytes=MAX_MESSAGE_BYTES)
        for page in pages:
            yield from page.items

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
        return self._read_if_known(Document, aim, "PATCH", path, json={"title": title}) is not None

    def interrupt(self, conversation_id: str) -> bool:
        """Stop the agent in the middle of its work; a message makes it go on. False: no such conversation."""
        path = f"/conversations/{conversation_id}/interrupt"
        return self._read_if_known(Document, "interrupt the conversation", "POST", path) is not None

    def delete_conversation(self, conversation_id: str) -> bool:
        """Delete the conversation, not its files. False: no such conversation."""
        path = f"/conversations/{conversation_id}"
        return self._read_if_known(Document, "delete the conversation", "DELETE", path) is not None

    def find_running(self) -> list[str]:
        """The dashed ids of up to a hundred conversations whose agent is at work."""
        path, params = "/conversations/search", {"status": "running", "limit": RUNNING_A_PAGE}
        pages = self._pages(RunningPage, "list conversations", path, params, MAX_RUNNING_PAGES)
        return [conversation.id for page in pages for conversation in page.items]

    def _probe(self, headers: dict[str, str]) -> int | None:
        """The status of a harmless request; None: the server does not answer, or can't now."""
        try:
            url = self._api + "/conversations/count"
            status = exchange_status(self._client, "GET", url, headers=headers, seconds=PROBE_SECONDS)
        except httpx.HTTPError:
            return None
        return None if status >= 500 or status == 429 else status

    def _pages(
        self, shape: type[AnyPage], aim: str, path: str, params: Mapping[str, Any], most: int, **options: Any
    ) -> Iterator[AnyPage]:
        """Up to so many pages, from the first."""
        for _ in range(most):
            page, _ = self._read(shape, aim, "GET", path, params=params, **options)
            yield page
            if page.next_page_id is None:
                return
            params = {**params, "page_id": page.next_page_id}

    def _read(self, shape: type[Shape], aim: str, method: str, path: str, **options: Any) -> tuple[Shape, Any]:
        """What the answer says, and the document as it is."""
        answer = self._call(aim, method, path, **options)
        try:
            return read_shape(answer.content, shape)
        except ValueError:
            raise WrongServer(f"what answers when asked to {aim} is not an agent server") from None

    def _read_if_known(
        self, shape: type[Shape], aim: str, method: str, path: str, **options: Any
    ) -> tuple[Shape, Any] | None:
        try:
            return self._read(shape, aim, method, path, **options)
        except AgentServerRefused as refusal:
            if refusal.status == 404:
                return None
            raise

    def _call(
        self,
        aim: str,
        method: str,
        path: str,
        *,
        seconds: float = CONTROL_SECONDS,
        max_bytes: int = MAX_BYTES,
        extra: Mapping[str, str] | None = None,
        **content: Any,
    ) -> Answer:
        headers = {**self._headers, **(extra or {})}
        url = self._api + path
        with _http_errors(aim), _point(method, aim):
            answer = exchange(
                self._client, method, url, headers=headers, seconds=seconds, max_bytes=max_bytes, **content
            )
        if answer.is_success:
            return answer
        if answer.status == 401:
            raise WrongServer("the agent server does not take the sandbox's key")
        detail = self._hide_key(self._redact(refusal_text(answer.content)))[:MAX_DETAIL_LENGTH]
        if answer.status >= 500 or answer.status == 429:
            raise AgentServerUnreachable(f"the agent server could not {aim}: {answer.status} {detail}")
        raise AgentServerRefused(aim, answer.status, detail)


def _point(method: str, aim: str) -> AbstractContextManager[None]:
    return nullcontext() if method == "GET" else failpoints.around(f"agent_server.{aim.replace(' ', '_')}")


@contextmanager
def _http_errors(aim: str) -> Iterator[None]:
    try:
        yield
    except httpx.HTTPError as error:
        # Only the kind of the error: its text and its request may quote what was sent.
        raise AgentServerUnreachable(f"no answer when asked to {aim}: {type(error).__name__}") from None
