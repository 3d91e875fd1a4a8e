"""The OpenAPI description is rendered once in a process, beside the event loop."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient

PATH = "/openapi.json"
CLIENTS = 4


@pytest.fixture
def rendered_in(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that have generated the description."""
    app: Any = client.app
    names: list[str] = []
    describe = app.openapi

    def note() -> Any:
        names.append(threading.current_thread().name)
        return describe()

    monkeypatch.setattr(app, "openapi", note)
    return names


def test_concurrent_and_later_requests_share_one_description(client: TestClient, rendered_in: list[str]) -> None:
    with ThreadPoolExecutor(CLIENTS) as clients:
        responses = [*clients.map(client.get, [PATH] * CLIENTS), client.get(PATH)]
    assert {(response.status_code, response.headers["Content-Type"]) for response in responses} == {
        (200, "application/json")
    }
    assert len({response.content for response in responses}) == 1
    assert [name.partition("_")[0] for name in rendered_in] == ["api-description"]


def test_client_that_has_the_description_gets_a_304(client: TestClient) -> None:
    etag = client.get(PATH).headers["ETag"]
    for known in (etag, f'"other", W/{etag}', "*"):
        response = client.get(PATH, headers={"If-None-Match": known})
        assert (response.status_code, response.content, response.headers["ETag"]) == (304, b"", etag)
    assert client.get(PATH, headers={"If-None-Match": '"other"'}).status_code == 200


def test_head_has_the_headers_and_no_body(client: TestClient) -> None:
    whole, head = client.get(PATH), client.head(PATH)
    assert (head.status_code, head.content) == (200, b"")
    assert [head.headers[name] for name in ("ETag", "Content-Length")] == [
        whole.headers["ETag"],
        str(len(whole.content)),
    ]
