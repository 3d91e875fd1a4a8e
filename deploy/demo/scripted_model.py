"""A scripted model with an OpenAI-compatible HTTP interface, for the demo and for tests.

It needs no provider and has no state: each answer depends on the request alone, so retries get the same answer, and
any number of conversations can run concurrently.
"""

import hmac
import threading
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from deploy.demo.script import (
    CallTool,
    Fail,
    Finish,
    Gate,
    Hold,
    Json,
    Response,
    RunCommand,
    Say,
    Script,
)
from deploy.demo.server import Server

__all__ = [
    "CallTool",
    "Fail",
    "Finish",
    "Gate",
    "Hold",
    "Response",
    "RunCommand",
    "Say",
    "Script",
    "ScriptedModel",
    "Seen",
]

MAX_RECORDED = 200


@dataclass(frozen=True)
class Seen:
    """One received completion request. Header names are in lower case."""

    model: str
    headers: Mapping[str, str]
    body: Json


class ScriptedModel:
    """A server of scripts by model name, between `start` and `stop` or inside a `with` block.

    Names may have the `openai/` prefix by which clients choose the provider; it is ignored.
    `host` must be an address that sandboxes can reach. With an `api_key`, requests with another key get a 401.
    """

    def __init__(
        self,
        scripts: Mapping[str, Script | Sequence[Response]],
        host: str = "127.0.0.1",
        port: int = 0,
        api_key: str | None = None,
    ) -> None:
        self.scripts = {bare(name): as_script(script) for name, script in scripts.items()}
        self.api_key = api_key
        self.seen: deque[Seen] = deque(maxlen=MAX_RECORDED)
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._server = Server((host, port), self)
        self._thread = threading.Thread(target=self._serve, name="scripted-model", daemon=True)

    @property
    def url(self) -> str:
        """The server's root URL; `/health` is below it."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    @property
    def base_url(self) -> str:
        """The base URL for clients."""
        return f"{self.url}/v1"

    @property
    def last_headers(self) -> Mapping[str, str]:
        """The headers of the latest completion request; empty before the first."""
        return self.seen[-1].headers if self.seen else {}

    def start(self) -> Self:
        """Start serving in a thread."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Open all gates, stop serving and free the port."""
        for gate in self._gates():
            gate.open()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        """Start serving."""
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop serving."""
        self.stop()

    def admits(self, authorization: str | None) -> bool:
        """Whether the Authorization header has the key, if one is required."""
        if self.api_key is None:
            return True
        key = (authorization or "").removeprefix("Bearer ")
        return hmac.compare_digest(key.encode(), self.api_key.encode())

    def record(self, request: Json, headers: Mapping[str, str]) -> None:
        """Record a completion request."""
        name = bare(str(request.get("model")))
        with self._lock:
            self.counts[name] += 1
            self.seen.append(Seen(name, headers, request))

    def answer(self, request: Json) -> Say | CallTool | RunCommand | Finish | Fail:
        """The answer to a request, after its gate, if any, has opened."""
        name = bare(str(request.get("model")))
        if name not in self.scripts:
            return Fail(404, f"no script for the model {name}")
        response = self.scripts[name].response_to(request)
        if not isinstance(response, Hold):
            return response
        return response.then if response.gate.passed() else Fail(503, "the gate was not opened in time")

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)

    def _gates(self) -> list[Gate]:
        responses = [response for script in self.scripts.values() for response in script.responses]
        return [response.gate for response in responses if isinstance(response, Hold)]


def bare(name: str) -> str:
    """A model's name without the provider prefix."""
    return name.removeprefix("openai/")


def as_script(script: Script | Sequence[Response]) -> Script:
    """Return the script, or make one from a list of responses."""
    return script if isinstance(script, Script) else Script(script)
