"""Redirects of paths with trailing slashes depend only on the path."""

import pytest
from fastapi.testclient import TestClient

from tests.factories import ApiUser


@pytest.mark.parametrize(
    ("path", "location"),
    [
        ("/api/v1/sandboxes/search/", "/api/v1/sandboxes/search"),
        ("/api/v1/sandboxes/search//?limit=1&x=%2F", "/api/v1/sandboxes/search?limit=1&x=%2F"),
        ("/api/v1/secrets/a%3Fb%20c/", "/api/v1/secrets/a%3Fb%20c"),
        ("/alive/", "/alive"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
def test_redirect_has_no_host(client: TestClient, method: str, path: str, location: str) -> None:
    headers = {"Host": "evil.example", "X-Forwarded-Host": "evil.example"}
    response = client.request(method, path, headers=headers, follow_redirects=False)
    assert (response.status_code, response.headers["Location"]) == (307, location)


def test_redirect_preserves_method_and_body(client: TestClient, user: ApiUser) -> None:
    response = client.post("/api/settings/", json={"language": "de"}, headers=user.headers)
    assert response.status_code == 200
    assert client.get("/api/settings", headers=user.headers).json()["language"] == "de"


@pytest.mark.parametrize("path", ["//evil.example/", "//alive/", "/nothing/", "/api/nothing/", "/"])
def test_unknown_path_with_a_slash_is_a_404(client: TestClient, path: str) -> None:
    response = client.get(f"http://testserver{path}", follow_redirects=False)
    assert (response.status_code, response.json()["detail"]) == (404, "Not Found")
