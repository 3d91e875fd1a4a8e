"""An agent server in memory; `tests/worker/agent_server/test_contract.py` checks it against the real one.

Commands are not run: they are recorded, and `replies` holds their results. The other intended differences are in
`tests/worker/agent_server/test_differences.py`.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import httpx

from tests.fakes.conversation import Body, FakeConversation

TAG_NAME = re.compile(r"[a-z0-9]+")
MAX_ITEMS = 100  # of a page
MAX_TITLE_LENGTH = 200


@dataclass(frozen=True)
class Reply:
    """Result of a command in the server's format: an empty stream is null."""

    exit_code: int = 0
    stdout: str | None = None
    stderr: str | None = None


@dataclass(frozen=True)
class Command:
    """A command that a client requested."""

    text: str
    cwd: str | None
    timeout: int


class FakeAgentServer:
    """Server for httpx requests. `calls` records every request by the name of the client's method."""

    def __init__(self, session_key: str | None = None, *, boot_key: str | None = None) -> None:
        self.session_key = session_key
        # Key of the deferred init that the server awaits; None: it awaits none.
        self.boot_key = boot_key
        self.is_dormant = boot_key is not None
        # Secret key after the init: the init key is valid for one init.
        self.secret_key: str | None = None
        self.conversations: dict[str, FakeConversation] = {}
        self.commands: list[Command] = []
        self.files: dict[str, bytes] = {}
        self.profiles: dict[str, Body] = {}
        self.calls: list[str] = []
        # The first entry whose text is part of a command is its result; other commands succeed without output.
        self.replies: dict[str, Reply] = {}
        # Responses by method, sent instead of executing the method.
        self.refuse: dict[str, httpx.Response] = {}
        # Called with the method's name before and after its execution. The client gets the errors that they raise.
        self.before: Callable[[str], None] = lambda _method: None
        self.after: Callable[[str], None] = lambda _method: None
        # Scripts of the projects in this sandbox.
        self.brings = ["setup.sh", "pre-commit.sh"]
        # Whether creates stop half-way, so that a conversation is left without its message.
        self.loses_messages = False

    def add(self, conversation_id: str, **columns: Any) -> FakeConversation:
        """Add an existing conversation."""
        made = FakeConversation(str(UUID(conversation_id)), **columns)
        self.conversations[UUID(conversation_id).hex] = made
        return made

    def get(self, conversation_id: str) -> FakeConversation:
        """Return the conversation with this id."""
        return self.conversations[UUID(conversation_id).hex]

    def respond(self, request: httpx.Request) -> httpx.Response:
        """Respond to one request."""
        if request.url.path == "/api/init":
            return self._initialize(request)
        if self.is_dormant:
            return self._respond_uninitialized(request)
        if self.session_key is not None and request.headers.get("X-Session-API-Key") != self.session_key:
            return httpx.Response(401, json={"detail": "Unauthorized"})
        method, conversation_id = _route(request)
        if method == "count":
            return httpx.Response(200, json=len(self.conversations))
        self.calls.append(method)
        self.before(method)
        response = self.refuse.get(method) or self._execute(method, conversation_id, request)
        self.after(method)
        return response

    def _initialize(self, request: httpx.Request) -> httpx.Response:
        if self.boot_key is None:
            return httpx.Response(404, json={"detail": "Not Found"})
        if request.method == "POST":
            self.calls.append("initialize")
            if response := self.refuse.get("initialize"):
                return response
            if request.headers.get("X-Init-API-Key") != (self.secret_key or self.boot_key):
                return httpx.Response(401, json={"detail": "Unauthorized"})
            if not self.is_dormant:
                return httpx.Response(400, json={"detail": "server already in state: ready"})
            config = _json(request)
            self.is_dormant, self.session_key = False, config["session_api_keys"][0]
            self.secret_key = config.get("secret_key")
        return httpx.Response(200, json={"state": "dormant" if self.is_dormant else "ready", "error": None})

    def _respond_uninitialized(self, request: httpx.Request) -> httpx.Response:
        if request.url.path != "/api/nowhere":
            return httpx.Response(503, json={"detail": "not initialized"})
        self.calls.append("warm_up")
        return httpx.Response(404, json={"detail": "Not Found"})

    def _execute(self, method: str, conversation_id: str, request: httpx.Request) -> httpx.Response:
        alone: dict[str, Callable[[httpx.Request], httpx.Response]] = {
            "run_command": self._run,
            "upload": self._upload,
            "keep_profile": self._keep_profile,
            "create_conversation": self._create,
            "find_running": self._find_running,
        }
        if method in alone:
            return alone[method](request)
        conversation = self.conversations.get(conversation_id)
        if conversation is None:
            return httpx.Response(404, json={"detail": "Not Found"})
        if method == "list_events":
            return _page(conversation.found(request.url.params), request.url.params)
        if method == "run" and conversation.execution_status == "running":
            return httpx.Response(409, json={"detail": "Conversation already running."})
        if method == "rename_conversation" and not 0 < len(_json(request)["title"].strip()) <= MAX_TITLE_LENGTH:
            return httpx.Response(422, json={"detail": [{"loc": ["body", "title"], "msg": "1 to 200 characters"}]})
        return httpx.Response(200, json=self._execute_on_conversation(method, conversation, request))

    def _execute_on_conversation(self, method: str, conversation: FakeConversation, request: httpx.Request) -> Body:
        match method:
            case "get_conversation":
                return conversation.shown()
            case "run":
                conversation.set_status("running")
            case "rename_conversation":
                conversation.title = _json(request)["title"]
            case "send_message":
                conversation.take(_json(request))
            case "interrupt":
                conversation.interrupt()
            case "delete_conversation":
                del self.conversations[UUID(conversation.id).hex]
        return {"success": True}

    def _find_running(self, request: httpx.Request) -> httpx.Response:
        status = request.url.params["status"]
        found = [
            conversation.shown()
            for conversation in self.conversations.values()
            if conversation.execution_status == status
        ]
        return _page(found, request.url.params)

    def _create(self, request: httpx.Request) -> httpx.Response:
        body = _json(request)
        problems = _problems(body)
        if problems:
            return httpx.Response(422, json={"detail": problems})
        known = self.conversations.get(UUID(body["conversation_id"]).hex)
        if known is not None:
            return httpx.Response(200, json=known.shown())
        made = self.add(body["conversation_id"], body=body)
        if body.get("initial_message") and not self.loses_messages:
            made.take(body["initial_message"])
        return httpx.Response(201, json=made.shown())

    def _keep_profile(self, request: httpx.Request) -> httpx.Response:
        name, body = request.url.path.rpartition("/")[2], _json(request)
        if not body["llm"].get("model"):
            return httpx.Response(422, json={"detail": [{"loc": ["body", "llm"], "msg": "no model", "input": body}]})
        self.profiles[name] = body["llm"]
        return httpx.Response(201, json={"name": name, "message": "saved"})

    def _run(self, request: httpx.Request) -> httpx.Response:
        body = _json(request)
        self.commands.append(Command(body["command"], body["cwd"], body["timeout"]))
        scripts = "".join(f"brings {script}\n" for script in self.brings) if "brings" in body["command"] else ""
        default = Reply(0, scripts or None)
        reply = next((reply for text, reply in self.replies.items() if text in body["command"]), default)
        return httpx.Response(200, json=vars(reply))

    def _upload(self, request: httpx.Request) -> httpx.Response:
        path = request.url.params["path"]
        if not path.startswith("/"):
            return httpx.Response(400, json={"detail": "Path must be absolute"})
        self.files[path] = _part(request)
        return httpx.Response(200, json={"success": True})


def _route(request: httpx.Request) -> tuple[str, str]:
    """Return the name of the client's method, and the conversation's id as hexadecimal digits."""
    verb, *context = request.method, *request.url.path.removeprefix("/api/").split("/")
    if (verb, *context) in ROUTES:
        return ROUTES[verb, *context], ""
    match [verb, *context]:
        case ["POST", "profiles", _]:
            return "keep_profile", ""
        case [verb, "conversations", conversation_id, *rest]:
            return METHODS[verb, *rest], UUID(conversation_id).hex
    raise AssertionError(f"no such route: {request.method} {request.url.path}")


ROUTES = {
    ("GET", "conversations", "count"): "count",
    ("GET", "conversations", "search"): "find_running",
    ("POST", "conversations"): "create_conversation",
    ("POST", "bash", "execute_bash_command"): "run_command",
    ("POST", "file", "upload"): "upload",
}
# Methods of one conversation.
METHODS = {
    ("GET",): "get_conversation",
    ("PATCH",): "rename_conversation",
    ("DELETE",): "delete_conversation",
    ("POST", "interrupt"): "interrupt",
    ("POST", "events"): "send_message",
    ("POST", "run"): "run",
    ("POST", "secrets"): "await_messages",
    ("GET", "events", "search"): "list_events",
}


def _problems(body: Body) -> list[Body]:
    """Return the validation errors that the real server would report for this body."""
    problems = []
    if not body["agent_settings"]["llm"].get("model"):
        problems.append({"loc": ["body", "agent_settings"], "msg": "model must be specified", "input": body})
    bad = [name for name in body.get("tags", {}) if not TAG_NAME.fullmatch(name)]
    problems += [{"loc": ["body", "tags"], "msg": f"{name} is no tag", "input": body} for name in bad]
    return problems


def _page(found: list[Body], params: Mapping[str, str]) -> httpx.Response:
    """Return the page that begins with the item of `page_id`, or with the first item."""
    limit = int(params.get("limit", MAX_ITEMS))
    if not 1 <= limit <= MAX_ITEMS:
        return httpx.Response(422, json={"detail": [{"loc": ["query", "limit"], "msg": "1 to 100"}]})
    ids = [item["id"] for item in found]
    start = ids.index(params["page_id"]) if "page_id" in params else 0
    following = ids[start + limit] if len(ids) > start + limit else None
    return httpx.Response(200, json={"items": found[start : start + limit], "next_page_id": following})


def _json(request: httpx.Request) -> Body:
    body: Body = json.loads(request.read())
    return body


def _part(request: httpx.Request) -> bytes:
    """Return the content of the only part of a multipart body."""
    boundary = request.headers["Content-Type"].partition("boundary=")[2].encode()
    return request.read().partition(b"\r\n\r\n")[2].partition(b"\r\n--" + boundary)[0]
