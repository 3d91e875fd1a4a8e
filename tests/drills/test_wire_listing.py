"""The listing reads all pages of all users, and detects a sandbox that is listed twice or for the wrong user."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.drills.wire_listing import list_statuses
from tests.factories import ApiUser
from tests.services import http

USERS = [ApiUser("a", "alice", "key-a"), ApiUser("b", "bob", "key-b")]


def serve(monkeypatch: pytest.MonkeyPatch, *pages: dict[str, Any], status: int = 200) -> list[tuple[str, Any]]:
    """Respond with these pages in turn; return the requests, each with its sender."""
    requested: list[tuple[str, Any]] = []
    left: Iterator[dict[str, Any]] = iter(pages)

    def get(_url: str, **options: Any) -> httpx.Response:
        requested.append((options["headers"]["Authorization"], options["params"].get("page_id")))
        return httpx.Response(status, json=next(left))

    monkeypatch.setattr(http, "get", get)
    return requested


def page(*ids: str, following: str | None = None, status: str = "RUNNING") -> dict[str, Any]:
    return {"items": [{"id": one, "status": status} for one in ids], "next_page_id": following}


def test_all_pages_of_all_users_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    requested = serve(monkeypatch, page("1", "2", following="p"), page("3"), page("4", status="PAUSED"))
    assert list_statuses("http://api", USERS) == {"1": "RUNNING", "2": "RUNNING", "3": "RUNNING", "4": "PAUSED"}
    assert requested == [("Bearer key-a", None), ("Bearer key-a", "p"), ("Bearer key-b", None)]


@pytest.mark.parametrize(
    "pages",
    [
        [page("1", "1"), page()],
        [page("1", following="p"), page("1"), page()],
        # The second page is another user's.
        [page("1"), page("1")],
    ],
)
def test_sandbox_that_is_listed_twice_is_an_error(monkeypatch: pytest.MonkeyPatch, pages: list[dict[str, Any]]) -> None:
    serve(monkeypatch, *pages)
    with pytest.raises(AssertionError):
        list_statuses("http://api", USERS)


def test_response_that_is_not_a_success_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    serve(monkeypatch, {"detail": "away"}, status=503)
    with pytest.raises(AssertionError, match="away"):
        list_statuses("http://api", USERS)
