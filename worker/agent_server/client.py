"""HTTP client for a sandbox's agent server, with the routes that a worker calls. Bodies are never logged."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any

import httpx

from shared.agent_server import limits, paths
from shared.agent_server.errors import AgentServerRefused, AgentServerUnreachable, NoKeyRequired, WrongServer
from shared.agent_server.responses import (
    AnyPage,
    CommandOutcome,
    CommandResult,
    ConversationShape,
    Document,
    InitState,
    MessageEvent,
    MessagePage,
    RunningPage,
    Shape,
    read_shape,
)
from shared.agent_server.untrusted_http import HTTP_ERRORS
from shared.observability import failpoints
from shared.redaction import Redact, redacting
from worker.agent_server.transport import CONTROL_SECONDS, KEY_HEADER, exchange, exchange_status

# Timeouts in seconds.
PROBE_SECONDS = 3.0
# A newer desired state waits for this request.
INITIALIZE_SECONDS = 10.0
UPLOAD_SECONDS = 60.0
CREATE_SECONDS = 120.0
# Added to a command's own timeout: the server needs 2 s to terminate a command.
COMMAND_GRACE_SECONDS = 15.0

# Only one document is parsed at a time, because the limits bound the memory of one hostile document, not of several.
_parsing = threading.Lock()


class AgentServer:
    """Client for one sandbox's agent server.

    All methods raise the errors of `shared.agent_server.errors`. Ids are accepted with and without dashes.

    Args:
        base_url: URL of the server's port 8000, without a path.
        client: a client of `open_client`.
        redact: removes secrets from an error response's text, by default all text. The session key is always removed.
    """

    def __init__(
        self, base_url: str, session_key: str, client: httpx.Client, redact: Redact = lambda _text: ""
    ) -> None:
        self._base_url, self._session_key = base_url.rstrip("/"), session_key
        self._headers = {KEY_HEADER: session_key}
        self._client, self._redact = client, redact

    def is_ready(self) -> bool:
        """Whether the server accepts this sandbox's key and requires it. False: it does not respond yet, or no longer.

        The second probe finds a server that lost its configuration: without keys it admits every caller.

        Raises:
            WrongServer: another server listens at the address.
            NoKeyRequired: the server admits every caller.
        """
        if not self.accepts_key():
            return False
        if self._probe({}) == 200:
            raise NoKeyRequired("the agent server accepts requests without a key")
        return True

    def accepts_key(self) -> bool:
        """Whether the server accepts this sandbox's key: the first half of `is_ready`, for a server that was ready.

        Raises:
            WrongServer: another server listens at the address.
        """
        status = self._probe(self._headers)
        if status is None:
            return False
        if status != 200:
            raise WrongServer(f"the address responded {status} to the sandbox's key")
        return True

    def is_dormant(self) -> bool | None:
        """Whether the server awaits deferred init (wire contract 3.4); None: no response, or init is in progress."""
        try:
            url = self._base_url + paths.INIT
            response = exchange(
                self._client, "GET", url, headers={}, seconds=PROBE_SECONDS, max_bytes=limits.MAX_ERROR_BYTES
            )
            if response.status == 404:  # deferred init is off, or the server is too old to support it
                return False
            state = read_shape(response.content, InitState)[0].state if response.is_success else "initializing"
        except (*HTTP_ERRORS, WrongServer, ValueError):
            return None
        return None if state == "initializing" else state == "dormant"

    def is_open(self) -> bool | None:
        """Whether the server responds without a key, because none is configured; None: no response."""
        status = self._probe({})
        return None if status is None else status == 200

    def warm_up(self) -> None:
        """Make a server that awaits deferred init build its routes now: the first routed request takes 70 ms."""
        # The path does not exist, so that the server searches all its routes. The response is ignored.
        with suppress(*HTTP_ERRORS):
            exchange_status(self._client, self._base_url + paths.NOWHERE, headers={}, seconds=PROBE_SECONDS)

    def initialize(self, init_key: str, config: dict[str, Any]) -> bool:
        """Initialize a server that awaits deferred init. A server ignores this while another init is in progress.

        Args:
            init_key: the secret key that the server booted with; it is invalid afterwards.
            config: session_api_keys, secret_key, webhooks and all other changes to its configuration at boot.

        Returns:
            Whether the server awaited deferred init and accepted the configuration.

        Raises:
            WrongServer: the server has another secret key, perhaps from this same config.
        """
        try:
            headers = {"X-Init-API-Key": init_key}
            self._call("take its keys", "POST", paths.INIT, json=config, extra=headers, seconds=INITIALIZE_SECONDS)
        except AgentServerRefused as error:
            if error.status not in (400, 404):
                raise
            return False
        return True

    def run_command(self, command: str, cwd: str | None = None, timeout: float = 30.0) -> CommandResult:
        """Run a shell command (`/bin/sh`) and wait for its end, up to `timeout` seconds.

        The server writes the command's text and output to files in the sandbox: they must not contain secrets.
        Cancelling the request does not terminate the command.
        """
        body = {"command": command, "cwd": cwd, "timeout": max(1, round(timeout))}
        seconds = timeout + COMMAND_GRACE_SECONDS
        outcome, _ = self._read(CommandOutcome, "run a command", "POST", paths.COMMAND, json=body, seconds=seconds)
        return outcome.result

    def upload(self, path: str, content: bytes) -> None:
        """Write a file and its folders in the sandbox. Every user with access to the folder can read the file.

        Raises:
            WrongServer: the path, which a command has printed, is longer than any in a sandbox.
        """
        if len(path.encode()) > limits.MAX_PATH_BYTES:
            raise WrongServer("the server returned a folder whose path is longer than any in a sandbox")
        files = {"file": ("file", content)}
        self._call("take a file", "POST", paths.UPLOAD, params={"path": path}, files=files, seconds=UPLOAD_SECONDS)

    def keep_profile(self, name: str, llm: Mapping[str, Any]) -> None:
        """Save an LLM's configuration under a name that conversations may use, and replace an earlier one."""
        # The server encrypts the configuration's secrets.
        body = {"llm": llm, "include_secrets": True}
        self._call("keep a profile", "POST", paths.profile(name), json=body)

    def create_conversation(self, body: dict[str, Any]) -> dict[str, Any]:
        """Create the conversation of `agent_request.build_request`, or return an existing one with its id.

        For an existing one, the rest of the body is ignored, including the initial message.
        """
        aim = "start the conversation"
        made, _ = self._read(Document, aim, "POST", paths.CONVERSATIONS, json=body, seconds=CREATE_SECONDS)
        return made.root

    def get_conversation(self, conversation_id: str) -> dict[str, Any] | None:
        """Return the server's document of the conversation; None: no such conversation.

        Only `title` and `last_user_message_id` are checked: each is a text, None or missing.
        """
        path = paths.conversation(conversation_id)
        known = self._read_if_known(ConversationShape, "show the conversation", "GET", path)
        return None if known is None else known[1]

    def send_message(self, conversation_id: str, message: dict[str, Any]) -> None:
        """Send a message {role, content, run} to the conversation."""
        self._call("take a message", "POST", paths.events(conversation_id), json=message)

    def await_messages(self, conversation_id: str) -> None:
        """Wait until the server has taken all messages that it got before: this request waits for the same lock."""
        self._call("await messages", "POST", paths.conversation(conversation_id, "/secrets"), json={"secrets": {}})

    def list_messages(self, conversation_id: str) -> Iterator[MessageEvent]:
        """Yield up to a thousand messages of users, newest first. Each is requested when the caller needs it."""
        path = paths.event_search(conversation_id)
        params = {"kind": "MessageEvent", "source": "user", "sort_order": "TIMESTAMP_DESC", "limit": 1}
        pages = self._pages(
            MessagePage, "list messages", path, params, limits.MAX_MESSAGES, max_bytes=limits.MAX_MESSAGE_BYTES
        )
        for page in pages:
            yield from page.items

    def run(self, conversation_id: str) -> bool:
        """Continue the agent's run. False: the agent is running already."""
        try:
            self._call("run the conversation", "POST", paths.conversation(conversation_id, "/run"))
        except AgentServerRefused as error:
            if error.status != 409:
                raise
            return False
        return True

    def rename_conversation(self, conversation_id: str, title: str) -> bool:
        """Set the title, cut to the length that the server takes. False: no such conversation."""
        path, cut = paths.conversation(conversation_id), title.strip()[: limits.MAX_TITLE_LENGTH]
        return self._read_if_known(Document, "rename the conversation", "PATCH", path, json={"title": cut}) is not None

    def interrupt(self, conversation_id: str) -> bool:
        """Interrupt the running agent; the next message continues it. False: no such conversation."""
        path = paths.conversation(conversation_id, "/interrupt")
        return self._read_if_known(Document, "interrupt the conversation", "POST", path) is not None

    def delete_conversation(self, conversation_id: str) -> bool:
        """Delete the conversation, not its files. False: no such conversation."""
        path = paths.conversation(conversation_id)
        return self._read_if_known(Document, "delete the conversation", "DELETE", path) is not None

    def find_running(self) -> list[str]:
        """Return the dashed ids of up to a hundred conversations with a running agent."""
        path, params = paths.SEARCH, {"status": "running", "limit": limits.RUNNING_PER_PAGE}
        pages = self._pages(RunningPage, "list conversations", path, params, limits.MAX_RUNNING_PAGES)
        return [conversation.id for page in pages for conversation in page.items]

    def _probe(self, headers: dict[str, str]) -> int | None:
        """Return the status of a harmless request; None: no response, or a temporary error (5xx, 429)."""
        try:
            status = exchange_status(self._client, self._base_url + paths.COUNT, headers=headers, seconds=PROBE_SECONDS)
        except HTTP_ERRORS:
            return None
        return None if status >= 500 or status == 429 else status

    def _pages(
        self, shape: type[AnyPage], aim: str, path: str, params: Mapping[str, Any], max_pages: int, **options: Any
    ) -> Iterator[AnyPage]:
        """Yield up to `max_pages` pages, from the first."""
        for _ in range(max_pages):
            page, _ = self._read(shape, aim, "GET", path, params=params, **options)
            yield page
            if page.next_page_id is None:
                return
            params = {**params, "page_id": page.next_page_id}

    def _read(self, shape: type[Shape], aim: str, method: str, path: str, **options: Any) -> tuple[Shape, Any]:
        """Return the parsed response and the whole document."""
        content = self._call(aim, method, path, **options)
        try:
            with _parsing:
                return read_shape(content, shape)
        except ValueError:
            raise WrongServer(f"the server that got the request to {aim} is not an agent server") from None

    def _read_if_known(
        self, shape: type[Shape], aim: str, method: str, path: str, **options: Any
    ) -> tuple[Shape, Any] | None:
        try:
            return self._read(shape, aim, method, path, **options)
        except AgentServerRefused as error:
            if error.status == 404:
                return None
            raise

    def _call(
        self,
        aim: str,
        method: str,
        path: str,
        *,
        seconds: float = CONTROL_SECONDS,
        max_bytes: int = limits.MAX_BYTES,
        extra: Mapping[str, str] | None = None,
        **content: Any,
    ) -> bytes:
        headers = {**self._headers, **(extra or {})}
        url = self._base_url + path
        with _http_errors(aim), _point(method, aim):
            response = exchange(
                self._client, method, url, headers=headers, seconds=seconds, max_bytes=max_bytes, **content
            )
        return response.require_success(aim, lambda text: redacting([self._session_key])(self._redact(text)))


def _point(method: str, aim: str) -> AbstractContextManager[None]:
    return nullcontext() if method == "GET" else failpoints.around(f"agent_server.{aim.replace(' ', '_')}")


@contextmanager
def _http_errors(aim: str) -> Iterator[None]:
    try:
        yield
    except HTTP_ERRORS as error:
        # Only the error's type: its text and its request may quote the sent body.
        raise AgentServerUnreachable(f"no response to the request to {aim}: {type(error).__name__}") from None
