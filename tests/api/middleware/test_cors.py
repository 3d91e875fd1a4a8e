"""Pages of other origins: those that are listed, and no others."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.request.context import Context
from shared.ids import new_id
from tests.factories import Person

PAGE, OTHER = "https://page.example", "https://evil.example"
WANTED = "authorization,content-type,x-org-id,x-session-api-key,x-openhands-client"
ALLOWED = "Access-Control-Allow-Origin"
WITH_COOKIES = "Access-Control-Allow-Credentials"


@pytest.fixture
def listing(context: Context) -> Iterator[TestClient]:
    """A client of an application for which pages are listed."""
    settings = context.settings.model_copy(update={"cors_origins": f" {PAGE}/, http://localhost:3001"})
    with TestClient(create_app(replace(context, settings=settings)), raise_server_exceptions=False) as client:
        yield client


def first_question(origin: str, method: str = "POST") -> dict[str, str]:
    return {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": WANTED,
    }


@pytest.mark.parametrize(
    "path", ["/api/v1/app-conversations", "/api/v1/sandboxes/x/pause", "/api/settings", "/nothing"]
)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
def test_the_first_question_needs_no_key(listing: TestClient, path: str, method: str) -> None:
    answer = listing.options(path, headers=first_question(PAGE, method))
    assert answer.status_code == 204
    assert (answer.headers[ALLOWED], answer.headers[WITH_COOKIES]) == (PAGE, "true")
    assert method in answer.headers["Access-Control-Allow-Methods"]
    assert answer.headers["Access-Control-Allow-Headers"] == WANTED
    assert answer.headers["Vary"] == "Origin"


def test_answers_and_errors_can_be_read_by_listed_pages(listing: TestClient, user: Person) -> None:
    for path, headers, status in (
        ("/api/v1/sandboxes/search", user.headers, 200),
        ("/api/v1/sandboxes/search", {}, 401),
        (f"/api/v1/sandboxes/{new_id()}", user.headers, 404),
        ("/api/settings", user.headers, 404),
        ("/alive", {}, 200),
    ):
        answer = listing.get(path, headers=headers | {"Origin": PAGE})
        assert (answer.status_code, answer.headers[ALLOWED], answer.headers[WITH_COOKIES]) == (status, PAGE, "true")
        assert "Retry-After" in answer.headers["Access-Control-Expose-Headers"]


@pytest.mark.parametrize(
    "origin", [OTHER, "null", "https://page.example.evil", "http://page.example", PAGE.upper(), "*"]
)
def test_pages_of_other_origins_get_no_headers(listing: TestClient, user: Person, origin: str) -> None:
    answers = (
        listing.options("/api/v1/sandboxes", headers=first_question(origin)),
        listing.get("/api/v1/sandboxes/search", headers=user.headers | {"Origin": origin}),
    )
    for answer in answers:
        assert [name for name in answer.headers if name.startswith("access-control")] == []
    assert answers[0].status_code == 405


def test_defect_47_no_page_is_let_in_unless_it_is_listed(client: TestClient, user: Person) -> None:
    for answer in (
        client.options("/api/v1/sandboxes", headers=first_question(OTHER)),
        client.get("/api/v1/sandboxes/search", headers=user.headers | {"Origin": OTHER}),
        client.get("/api/v1/sandboxes/search", headers={"Origin": OTHER}),
    ):
        assert [name for name in answer.headers if name.startswith("access-control")] == []


def test_defect_47_nobody_is_held_up_for_the_address_they_come_from(client: TestClient, user: Person) -> None:
    # Behind a proxy all come from one; V1 delays at 10 requests a second, and refuses at 20.
    assert {client.get("/api/v1/users/me", headers=user.headers).status_code for _ in range(50)} == {200}
