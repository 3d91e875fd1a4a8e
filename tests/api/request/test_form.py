"""Forms of callers without a key, with texts that neither a page nor a database can contain."""

import json

import pytest
from fastapi.testclient import TestClient

PATHS = ("/login", "/oauth/device/authorize", "/oauth/device/token", "/oauth/device/verify")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("text", ["/\0", "/\ud800"])
def test_unstorable_text_is_a_422(client: TestClient, path: str, text: str) -> None:
    fields = dict.fromkeys(("api_key", "returnTo", "user_code", "device_code", "client_id", "decision"), text)
    headers = {"Origin": "http://testserver", "Content-Type": "application/json"}
    response = client.post(path, content=json.dumps(fields), headers=headers)
    assert (response.status_code, response.json()["detail"][0]["loc"]) == (422, ["body"])
