"""A scripted model behind an OpenAI-compatible HTTP interface, for the demonstration and for tests.

It needs no provider and no state: each answer follows from the request alone, so retries get the same
answer and any number of conversations may run at once.
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
    Json,
    RunCommand,
    Say,
    Script,
    Turn,
    Wait,
)
from deploy.demo.server import Server

__all__ = [
    "CallTool",
    "Fail",
    "Finish",
    "Gate",
    "RunCommand",
    "Say",
    "Script",
    "ScriptedModel",
    "Seen",
    "Turn",
    "Wait",
]

REMEMBERED = 200


@dataclass(frozen=True)
class Seen:
    """One completion request as it arrived; header names are in lower case."""

    model: str
    headers: Mapping[str, str]
    body: Json


class ScriptedModel:
    """Serves the scripts, by model name, between `start` and `stop` or inside a `with` block.

    Names may carry the `openai/` prefix by which clients choose the provider; it is not compared.
    `host` must be an address the sandboxes can reach. With an `api_key`, any other key gets 401.
    """

    def __init__(
        self,
        scripts: Mapping[str, Script | Sequence[Turn]],
        host: str = "127.0.0.1",
        port: int = 0,
        api_key: str | None = None,
    ) -> None:
        self.scripts = {bare(name): as_script(script) for name, script in scripts.items()}
        self.api_key = api_key
        self.seen: deque[Seen] = deque(maxlen=REMEMBERED)
        self.counts: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._server = Server((host, port), self)
        self._thread = threading.Thread(target=self._serve, name="scripted-model", daemon=True)

    @property
    def url(self) -> str:
        """The server's address alone; `/health` is below it."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    @property
    def base_url(self) -> str:
        """What a client's base URL setting wants."""
        return f"{self.url}/v1"

    @property
    def last_headers(self) -> Mapping[str, str]:
        """Headers of the newest completion request; empty before the first."""
        return self.seen[-1].headers if self.seen else {}

    def start(self) -> Self:
        """Begin to serve, in a thread of its own."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop serving and free the port; requests held at a gate are let through first."""
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
        """Whether the Authorization header carries the key, if one is asked for."""
        if self.api_key is None:
            return True
        given = (authorization or "").removeprefix("Bearer ")
        return hmac.compare_digest(given.encode(), self.api_key.encode())

    def record(self, request: Json, headers: Mapping[str, str]) -> None:
        """Remember a completion request."""
        name = bare(str(request.get("model")))
        with self._lock:
            self.counts[name] += 1
            self.seen.append(Seen(name, headers, request))

    def answer(self, request: Json) -> Say | CallTool | RunCommand | Finish | Fail:
        """The turn for a request, after any gate before it has opened."""
        name = bare(str(request.get("model")))
        if name not in self.scripts:
            return Fail(404, f"no script for the model {name}")
        turn = self.scripts[name].turn_for(request)
        if not isinstance(turn, Wait):
            return turn
        return turn.then if turn.gate.passed() else Fail(503, "the gate was not opened in time")

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=0.05)

    def _gates(self) -> list[Gate]:
        turns = [turn for script in self.scripts.values() for turn in script.turns]
        return [turn.gate for turn in turns if isinstance(turn, Wait)]


def bare(name: str) -> str:
    """A model's name without the provider prefix."""
    return name.removeprefix("openai/")


def as_script(script: Script | Sequence[Turn]) -> Script:
    """A script, also from a bare list of turns."""
    return script if isinstance(script, Script) else Script(script)
