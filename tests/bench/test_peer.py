"""The client of other V1 servers, with a scripted server. It deletes every sandbox that it starts."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, HTTPException, Request, Response

from tests.bench import peer
from tests.services.asgi import serving

KEY = "the-peer-s-key"


class Peer:
    """A V1 server with one sandbox, which shows `statuses` in turn and repeats the last one. None: it is deleted."""

    def __init__(self) -> None:
        self.app = FastAPI()
        self.statuses: list[str | None] = []
        self.refused: set[str] = set()
        self.fails = ""
        self.requested: list[str] = []
        self.deleted: list[str | None] = []
        self.app.add_api_route("/api/v1/sandboxes", self._start, methods=["POST"])
        self.app.add_api_route("/api/v1/sandboxes", self._get, methods=["GET"])
        self.app.add_api_route("/api/v1/sandboxes/search", self._search, methods=["GET"])
        self.app.add_api_route("/api/v1/app-conversations/search", self._search, methods=["GET"])
        self.app.add_api_route("/api/v1/sandboxes/{_id}/{verb}", self._change, methods=["POST"])
        self.app.add_api_route("/api/v1/sandboxes/{_id}", self._delete, methods=["DELETE"])
        self.app.middleware("http")(self._admit)

    async def _admit(self, request: Request, result: Any) -> Response:
        """Respond to the first request of each kind in `refused` with a 429."""
        assert request.headers["X-Session-API-Key"] == KEY
        name = f"{request.method} {request.url.path.removeprefix('/api/v1')}"
        self.requested.append(name)
        if name in self.refused:
            self.refused.remove(name)
            return Response(status_code=429, headers={"Retry-After": "0"})
        response: Response = await result(request)
        return response

    def _start(self) -> dict[str, str]:
        return {"id": "s1", "status": "STARTING"}

    def _get(self, id: str) -> list[dict[str, str] | None]:  # noqa: A002 - the wire's name
        status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
        return [{"id": id, "status": status} if status else None]

    def _search(self) -> dict[str, list[str]]:
        return {"items": []}

    def _change(self, verb: str) -> dict[str, bool]:
        if verb == self.fails:
            raise HTTPException(500)
        self.statuses = ["PAUSED" if verb == "pause" else "RUNNING"]
        return {"success": True}

    def _delete(self, sandbox_id: str | None = None) -> dict[str, bool]:
        self.deleted.append(sandbox_id)
        return {"success": True}


@pytest.fixture
def server() -> Peer:
    return Peer()


@pytest.fixture
def url(server: Peer, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Shorten the client's pauses; yield the server's URL."""
    for name in ("REST_SECONDS", "ASK_MAX_SECONDS"):
        monkeypatch.setattr(peer, name, 0.01)
    with serving(server.app) as url:
        yield url


def test_each_started_sandbox_is_deleted(server: Peer, url: str) -> None:
    server.statuses = ["STARTING", "STARTING", "RUNNING"]
    figures = {figure.name: figure.runs for figure in peer.measure(url, KEY, runs=2, seconds=0.1)}
    assert [len(run) for run in figures["pause"]] == [peer.PAUSES] * 2
    assert server.deleted == ["s1"] * (2 + peer.LISTED)
    assert server.requested.count("POST /sandboxes") == len(server.deleted)


@pytest.mark.parametrize("last", ["ERROR", "MISSING", None])
def test_failed_start_is_reported_and_deleted(server: Peer, url: str, last: str | None) -> None:
    server.statuses = ["STARTING", last]
    with pytest.raises(RuntimeError, match=f"s1 should be RUNNING and is .*{last or 'gone'}"):
        list(peer.measure(url, KEY, runs=2, seconds=0.1))
    assert server.deleted == ["s1"]


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_sandbox_is_deleted_after_a_failed_operation(server: Peer, url: str, verb: str) -> None:
    server.statuses, server.fails = ["RUNNING"], verb
    with pytest.raises(httpx.HTTPStatusError, match="500"):
        list(peer.measure(url, KEY, runs=1, seconds=0.1))
    assert server.deleted == ["s1"]


def test_sandbox_that_takes_too_long_is_deleted(server: Peer, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "MAX_SECONDS", 0.1)
    server.statuses = ["STARTING"]
    with pytest.raises(RuntimeError, match="s1 should be RUNNING"):
        list(peer.measure(url, KEY, runs=1, seconds=0.1))
    assert server.deleted == ["s1"]


def test_refused_request_is_retried(server: Peer, url: str) -> None:
    server.statuses = ["RUNNING"]
    server.refused = {"POST /sandboxes", "GET /sandboxes", "POST /sandboxes/s1/pause", "DELETE /sandboxes/s1"}
    assert len(list(peer.measure(url, KEY, runs=1, seconds=0.1))) == 9
    assert (server.refused, server.deleted) == (set(), ["s1"] * (1 + peer.LISTED))
