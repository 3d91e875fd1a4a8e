"""CORS: listed origins are allowed, all others are not."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError

from api.app import create_app
from api.request.context import Context
from shared.ids import new_id
from shared.settings import Settings
from tests.factories import ApiUser

PAGE, OTHER = "https://page.example", "https://evil.example"
REQUESTED_HEADERS = "authorization,content-type,x-org-id,x-session-api-key,x-openhands-client"
ALLOWED = "Access-Control-Allow-Origin"
WITH_COOKIES = "Access-Control-Allow-Credentials"


@pytest.fixture
def listing(context: Context) -> Iterator[TestClient]:
    """A client of an application with listed origins."""
    settings = context.settings.model_copy(update={"cors_origins": f" {PAGE}/, http://localhost:3001"})
    with TestClient(create_app(replace(context, settings=settings)), raise_server_exceptions=False) as client:
        yield client


def preflight_headers(origin: str, method: str = "POST") -> dict[str, str]:
    return {
        "Origin": origin,
        "Access-Control-Request-Method": method,
        "Access-Control-Request-Headers": REQUESTED_HEADERS,
    }


@pytest.mark.parametrize(
    "path", ["/api/v1/app-conversations", "/api/v1/sandboxes/x/pause", "/api/settings", "/nothing"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"])
def test_preflight_needs_no_key(listing: TestClient, path: str, method: str) -> None:
    response = listing.options(path, headers=preflight_headers(PAGE, method))
    assert response.status_code == 200
    assert (response.headers[ALLOWED], response.headers[WITH_COOKIES]) == (PAGE, "true")
    assert method in response.headers["Access-Control-Allow-Methods"]
    assert response.headers["Access-Control-Allow-Headers"] == REQUESTED_HEADERS
    assert "Origin" in response.headers["Vary"]


def test_cached_list_has_the_headers_of_its_own_request(listing: TestClient, user: ApiUser) -> None:
    """All requests for a cached list get the same response object."""
    for origin in (PAGE, "http://localhost:3001", PAGE, OTHER):
        response = listing.get("/api/v1/sandboxes/search", headers=user.headers | {"Origin": origin})
        names = [name for name, _ in response.headers.multi_items()]
        assert (response.status_code, sorted(names)) == (200, sorted(set(names)))
        assert response.headers.get(ALLOWED) == (None if origin == OTHER else origin)
        assert response.headers["Vary"] == "Origin"


def test_responses_and_errors_are_readable_by_listed_origins(listing: TestClient, user: ApiUser) -> None:
    for path, headers, status in (
        ("/api/v1/sandboxes/search", user.headers, 200),
        ("/api/v1/sandboxes/search", {}, 401),
        (f"/api/v1/sandboxes/{new_id()}", user.headers, 404),
        ("/api/settings", user.headers, 404),
        ("/alive", {}, 200),
    ):
        response = listing.get(path, headers=headers | {"Origin": PAGE})
        assert (response.status_code, response.headers[ALLOWED], response.headers[WITH_COOKIES]) == (
            status,
            PAGE,
            "true",
        )
        assert "Retry-After" in response.headers["Access-Control-Expose-Headers"]


@pytest.mark.parametrize(
    "origin", [OTHER, "null", "https://page.example.evil", "http://page.example", PAGE.upper(), "*"]
)
def test_unlisted_origins_are_not_allowed(listing: TestClient, user: ApiUser, origin: str) -> None:
    responses = (
        listing.options("/api/v1/sandboxes", headers=preflight_headers(origin)),
        listing.get("/api/v1/sandboxes/search", headers=user.headers | {"Origin": origin}),
    )
    assert [response.headers.get(ALLOWED) for response in responses] == [None, None]
    assert [response.status_code for response in responses] == [400, 200]


def test_all_origins_at_once_cannot_be_listed() -> None:
    with pytest.raises(ValidationError, match="cors_origins"):
        Settings(cors_origins="https://page.example, *")


def test_defect_47_no_origin_is_allowed_by_default(client: TestClient, user: ApiUser) -> None:
    for response in (
        client.options("/api/v1/sandboxes", headers=preflight_headers(OTHER)),
        client.get("/api/v1/sandboxes/search", headers=user.headers | {"Origin": OTHER}),
        client.get("/api/v1/sandboxes/search", headers={"Origin": OTHER}),
    ):
        assert [name for name in response.headers if name.startswith("access-control")] == []


def test_defect_47_requests_are_not_limited_by_client_address(client: TestClient, user: ApiUser) -> None:
    # Behind a proxy all clients share one address. V1 delays requests above 10 a second, and rejects them above 20.
    assert {client.get("/api/v1/users/me", headers=user.headers).status_code for _ in range(50)} == {200}
