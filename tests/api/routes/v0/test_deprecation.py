"""All operations of V0 are marked as deprecated, with a link to their replacement."""

import re
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.api.documented import DEPRECATED
from tests.api.operations import PLACEHOLDER, all_operations
from tests.factories import ApiUser

LINK = re.compile(r'<(/api/v1/[^>]+)>; rel="successor-version"')


def description(client: TestClient) -> dict[str, Any]:
    assert isinstance(client.app, FastAPI)
    paths: dict[str, Any] = client.app.openapi()["paths"]
    return paths


def deprecated(client: TestClient) -> set[str]:
    """The operations that the OpenAPI description marks as deprecated."""
    return {
        f"{method.upper()} {path}"
        for path, methods in description(client).items()
        for method, details in methods.items()
        if details.get("deprecated")
    }


def test_deprecated_operations_are_those_of_v0(client: TestClient) -> None:
    families = ("settings", "reset-settings", "add-git-", "unset-provider-", "secrets", "conversations", "options")
    found = {str(one) for one in all_operations(client) if one.path.removeprefix("/api/").startswith(families)}
    assert found == deprecated(client) == DEPRECATED


def test_deprecated_responses_name_their_successor(client: TestClient, user: ApiUser) -> None:
    paths = {PLACEHOLDER.sub("{}", path) for path in description(client)}
    operations = [one for one in all_operations(client) if str(one) in deprecated(client)]
    assert {str(one) for one in operations} == DEPRECATED
    for operation in operations:
        for headers in ({}, user.headers):
            response = client.request(operation.method, operation.url(any="0" * 32), headers=headers)
            assert re.fullmatch(r"@\d{10}", response.headers["Deprecation"]), operation
            found = LINK.fullmatch(response.headers["Link"])
            assert found, operation
            assert found[1].replace("0" * 32, "{}") in paths, operation
            assert "Sunset" not in response.headers


def test_v1_responses_are_not_deprecated(client: TestClient, user: ApiUser) -> None:
    for path in ("/api/v1/settings", "/api/v1/secrets/search", "/api/v1/app-conversations", "/api/keys"):
        assert "Deprecation" not in client.get(path, headers=user.headers).headers


def test_name_in_the_path_of_the_successor_is_quoted(client: TestClient, user: ApiUser) -> None:
    response = client.delete("/api/secrets/a%3E%20b", headers=user.headers)
    assert response.headers["Link"] == '</api/v1/secrets/a%3E%20b>; rel="successor-version"'


@pytest.mark.parametrize("headers", [{}, {"X-Session-API-Key": "wrong"}])
def test_errors_have_the_field_names_of_v0(client: TestClient, headers: dict[str, str]) -> None:
    response = client.get("/api/settings", headers=headers)
    body = response.json()
    assert response.status_code == 401
    assert body["error"] == body["detail"] == body["message"] != ""
