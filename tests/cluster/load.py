"""Requests of one user at a fixed rate, to the APIs of all machines in turn, however long the responses take.

PATTERN is the mix of reads and writes. A journal records the acknowledged writes.
"""

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.cluster.journal import Journal
from tests.services import http

RATE = 50
# The requests of each second. `lifecycle`: start a sandbox or a conversation, or delete one.
PATTERN = ("read",) * 35 + ("event",) * 4 + ("secret",) * 4 + ("proxied",) * 3 + ("pause",) * 3 + ("lifecycle",)
SANDBOXES = "/api/v1/sandboxes"
CONVERSATIONS = "/api/v1/app-conversations"
TASKS = f"{CONVERSATIONS}/start-tasks"
SECRETS = "/api/v1/secrets"
READS = (
    f"{SANDBOXES}/search",
    f"{CONVERSATIONS}/search",
    f"{CONVERSATIONS}/count",
    f"{SECRETS}/search",
    f"{TASKS}/search",
    "/api/v1/settings",
    "/api/v1/users/me",
    "/api/v1/sandbox-specs/search",
)
SETTINGS = {"llm_model": "openai/none", "llm_api_key": "key", "llm_base_url": "http://127.0.0.1:9"}
MESSAGE = {"initial_message": {"content": [{"type": "text", "text": "hello"}]}}
CONVERSATION_COUNT, PAUSED = 2, 3
# The number of sandboxes that `lifecycle` starts before it deletes one of them.
ALIVE = 3
KEPT_SECRETS = 5
TIMEOUT = 60


@dataclass(frozen=True)
class Request:
    """A request that ended."""

    phase: str
    name: str
    began: float
    seconds: float
    failure: str = ""


@dataclass
class Load:
    """The load of a user with an API key; `run` sends it in the calling thread."""

    urls: Sequence[str]
    key: str
    journal: Journal = field(default_factory=Journal)
    requests: list[Request] = field(default_factory=list)
    # The current phase, which the test names and the report shows separately.
    phase: str = "before"
    began: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        """Prepare the conversations and sandboxes, then send requests until `ended` is set."""
        try:
            asyncio.run(self._run())
        finally:
            self.began.set()

    @property
    def failures(self) -> list[str]:
        """The failed requests, with the reasons."""
        return [f"{request.phase}: {request.name}: {request.failure}" for request in self.requests if request.failure]

    async def _run(self) -> None:
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(_client(url, self.key)) for url in self.urls]
            user = _User(self, itertools.cycle(clients))
            await user.prepare()
            self.began.set()
            await user.send()


class _User:
    """The user's requests."""

    def __init__(self, load: Load, clients: Iterator[httpx.AsyncClient]) -> None:
        self._load, self._journal, self._clients = load, load.journal, clients
        self._numbers, self._reads = itertools.count(), itertools.cycle(READS)
        self._conversations: list[dict[str, Any]] = []
        self._toggled: list[str] = []
        self._secrets: list[str] = []
        self._alive: list[str] = []
        self._starting: list[str] = []

    async def prepare(self) -> None:
        """Start the conversations, and the sandboxes that are paused and resumed, that the load uses throughout."""
        await self._send("POST", "/api/settings", json=SETTINGS)
        for _ in range(CONVERSATION_COUNT):
            task = await self._send("POST", CONVERSATIONS, params={"wait": 60}, json=MESSAGE)
            assert task["status"] == "READY", task
            self._conversations.append(task)
            self._journal.add_conversation(task["app_conversation_id"], task["sandbox_id"])
        for _ in range(PAUSED):
            sandbox = await self._send("POST", SANDBOXES, params={"wait": 60})
            self._toggled.append(sandbox["id"])
            self._journal.request_status(sandbox["id"], "RUNNING")
        self._load.requests.clear()

    async def send(self) -> None:
        """Begin fifty requests per second, and wait for the last ones."""
        began, tasks = time.monotonic(), list[asyncio.Task[None]]()
        for number in itertools.count():
            await asyncio.sleep(began + number / RATE - time.monotonic())
            if self._load.ended.is_set():
                break
            # Spread the kinds over each second: 50 and 17 have no common divisor.
            tasks.append(asyncio.create_task(self._act(PATTERN[number * 17 % len(PATTERN)])))
        await asyncio.gather(*tasks)  # raises the error of a task that failed long ago, too

    async def _act(self, kind: str) -> None:
        await getattr(self, f"_{kind}")()

    async def _read(self) -> None:
        await self._send("GET", next(self._reads))

    async def _proxied(self) -> None:
        task = self._conversations[next(self._numbers) % CONVERSATION_COUNT]
        path = f"/sandbox/{task['sandbox_id']}/api/conversations/{task['app_conversation_id']}"
        await self._send("GET", path, name="GET through the sandbox path")

    async def _event(self) -> None:
        number = next(self._numbers)
        task = self._conversations[number % CONVERSATION_COUNT]
        path = f"/sandbox/{task['sandbox_id']}/api/conversations/{task['app_conversation_id']}/events"
        text = f"message {number}"
        body = {"role": "user", "content": [{"type": "text", "text": text}], "run": False}
        if await self._send("POST", path, name="POST through the sandbox path", json=body) is not None:
            self._journal.add_message(task["app_conversation_id"], text)

    async def _secret(self) -> None:
        if len(self._secrets) >= KEPT_SECRETS:
            name = self._secrets.pop(0)
            if await self._send("DELETE", f"{SECRETS}/{name}", name=f"DELETE {SECRETS}") is not None:
                self._journal.secrets.discard(name)
            return
        name = f"SECRET_{next(self._numbers)}"
        if await self._send("POST", SECRETS, json={"name": name, "value": "value"}) is not None:
            self._journal.secrets.add(name)
            self._secrets.append(name)

    async def _pause(self) -> None:
        """Pause or resume the next sandbox without a pending request; if there is none, send a read."""
        if not self._toggled:
            return await self._read()
        sandbox_id = self._toggled.pop(0)
        verb, status = (
            ("resume", "RUNNING") if self._journal.is_requested(sandbox_id, "PAUSED") else ("pause", "PAUSED")
        )
        if await self._send("POST", f"{SANDBOXES}/{sandbox_id}/{verb}", name=f"POST {verb}") is not None:
            self._journal.request_status(sandbox_id, status)
        self._toggled.append(sandbox_id)
        return None

    async def _lifecycle(self) -> None:
        """Poll a start task, or delete the oldest sandbox, or else start a conversation or a sandbox, alternately."""
        if self._starting:
            return await self._follow(self._starting.pop(0))
        if len(self._alive) >= ALIVE:
            return await self._delete(self._alive.pop(0))
        if next(self._numbers) % 2:
            task = await self._send("POST", CONVERSATIONS, json=MESSAGE)
            if task is not None:
                self._journal.tasks.add(task["id"])
                self._starting.append(task["id"])
            return None
        sandbox = await self._send("POST", SANDBOXES)
        if sandbox is not None:
            self._journal.request_status(sandbox["id"], "RUNNING")
            self._alive.append(sandbox["id"])
        return None

    async def _follow(self, task_id: str) -> None:
        task = await self._send("GET", f"{TASKS}/{task_id}", name=f"GET {TASKS}")
        if task is None or task["status"] not in ("READY", "ERROR"):
            self._starting.append(task_id)
        elif task["status"] == "READY":
            self._journal.request_status(task["sandbox_id"], "RUNNING")
            self._alive.append(task["sandbox_id"])

    async def _delete(self, sandbox_id: str) -> None:
        if await self._send("DELETE", f"{SANDBOXES}/{sandbox_id}", name=f"DELETE {SANDBOXES}") is not None:
            self._journal.request_status(sandbox_id, None)

    async def _send(self, method: str, path: str, *, name: str = "", **options: Any) -> Any:
        """Send a request; return the body of the response, or None after a failure."""
        phase, began, failure, body = self._load.phase, time.monotonic(), "", None
        try:
            response = await next(self._clients).request(method, path, **options)
            if response.is_success:
                body = (response.json() if response.content else None) or {}
            else:
                failure = f"{response.status_code} {response.text[:300]}"
        except (httpx.TransportError, ValueError) as error:
            failure = repr(error)
        taken = time.monotonic() - began
        self._load.requests.append(Request(phase, name or f"{method} {path}", began, taken, failure))
        return body


def _client(url: str, key: str) -> httpx.AsyncClient:
    headers = {"Authorization": f"Bearer {key}"}
    return httpx.AsyncClient(
        base_url=url, headers=headers, timeout=TIMEOUT, verify=http.NO_CERTIFICATES, trust_env=False
    )
