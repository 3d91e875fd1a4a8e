"""`sandboxes logs`: the logs of a sandbox's containers, through the API."""

from collections.abc import Callable
from typing import Any

import httpx

from tests.shared.cli.remote.conftest import Handler
from tests.shared.cli.results import Cli

ID = "a" * 32


def answer_of(*texts: str, first: int = 0, container: str = "c1", **fields: Any) -> dict[str, Any]:
    """A response with lines whose numbers begin with `first`."""
    lines = [{"at": f"t{number}", "text": text} for number, text in enumerate(texts, first)]
    log = {"container_id": container, "cause": None, "read_at": "2026-01-01T00:00:00Z", "is_cut": False, "lines": lines}
    cursor = f"t{first + len(texts) - 1}"
    return {"is_live": True, "is_deleted": False, "cursor": cursor, "containers": [log]} | fields


def test_log_is_printed(scripted: Callable[[Handler], Cli]) -> None:
    requested: list[httpx.Request] = []

    def respond(request: httpx.Request) -> httpx.Response:
        requested.append(request)
        return httpx.Response(200, json=answer_of("one", "two"))

    done = scripted(respond)("sandboxes", "logs", ID, "--tail", "7")
    assert (done.status, done.out, done.err) == (0, "one\ntwo\n", "--- container c1\n")
    assert [(request.url.path, dict(request.url.params)) for request in requested] == [
        (f"/api/v1/sandboxes/{ID}/logs", {"tail": "7"})
    ]


def test_followed_log_ends_with_its_sandbox(scripted: Callable[[Handler], Cli]) -> None:
    responses = [
        answer_of("one", "two"),
        answer_of(first=2),
        answer_of("three", first=2),
        answer_of("of another", first=3, container="c2", is_live=False),
        answer_of(first=4, container="c2", is_live=False, is_deleted=True),
    ]
    cursors: list[str | None] = []

    def respond(request: httpx.Request) -> httpx.Response:
        cursors.append(request.url.params.get("after"))
        return httpx.Response(200, json=responses.pop(0))

    done = scripted(respond)("sandboxes", "logs", ID, "-f")
    assert (done.status, done.out.splitlines()) == (0, ["one", "two", "three", "of another"])
    assert cursors == [None, "t1", "t1", "t2", "t3"]
    assert done.err.splitlines() == [
        "--- container c1",
        "--- container c2",
        "--- the log is not live: this is its log as it was kept at 2026-01-01 00:00:00Z",
        "--- the sandbox is deleted: this is its log as it was kept at 2026-01-01 00:00:00Z",
    ]


def test_log_of_another_users_sandbox_is_not_found(scripted: Callable[[Handler], Cli]) -> None:
    refused = scripted(lambda _: httpx.Response(404, json={"detail": "no sandbox"}))("sandboxes", "logs", ID)
    assert (refused.status, refused.out) == (3, "")
