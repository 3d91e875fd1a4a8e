"""Bodies whose content type is not that of JSON."""

import pytest
from fastapi.testclient import TestClient

from tests.api.agent_reports import JSON
from tests.factories import ApiUser

PATHS = ("/api/v1/app-conversations", "/api/settings")


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Content-Type": "application/octet-stream"},
        {},
    ],
)
def test_body_with_another_content_type_or_none_is_a_422(
    client: TestClient, user: ApiUser, headers: dict[str, str]
) -> None:
    for path in PATHS:
        response = client.post(path, content=b"{}", headers=user.headers | headers)
        [entry] = response.json()["detail"]
        assert (response.status_code, entry["loc"]) == (422, ["header", "Content-Type"])
        assert "application/json" in entry["msg"]


@pytest.mark.parametrize("headers", [{"Content-Type": "text/plain"}, {}, JSON])
def test_absent_body_is_a_422_that_says_so(client: TestClient, user: ApiUser, headers: dict[str, str]) -> None:
    for path in PATHS:
        response = client.post(path, headers=user.headers | headers)
        [entry] = response.json()["detail"]
        assert (response.status_code, entry["loc"], entry["type"]) == (422, ["body"], "missing")


def test_error_of_a_form_is_not_one_of_its_content_type(client: TestClient) -> None:
    for path in ("/login", "/oauth/device/token"):
        response = client.post(path, data={"device_code": "a\0b"})
        [entry] = response.json()["detail"]
        assert (response.status_code, entry["loc"], entry["type"]) == (422, ["body"], "nul")
