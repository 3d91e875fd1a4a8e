"""/api/cloud-proxy: it reaches the caller's own sandboxes, and no other host."""

import hashlib
import json
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from api.json_text import SMALL_BYTES
from api.limits.process import BODIES_OF_USER
from shared.db.database import Database
from shared.models import Sandbox
from shared.states import Status
from tests.api.agent_reports import JSON
from tests.api.sandbox_proxy.doubles import Agent, Serve, Worker, key_of
from tests.factories import ApiUser, make_sandbox
from tests.waiting import eventually

HOST = "http://any.example:1/sandbox/{}"
PATH = "/api/cloud-proxy"


def send(api: httpx.Client, user: ApiUser, sandbox: Sandbox, **fields: Any) -> httpx.Response:
    return api.post(PATH, json=enclose(sandbox, **fields), headers=user.headers)


def enclose(sandbox: Sandbox, **fields: Any) -> dict[str, Any]:
    request = {"host": HOST.format(sandbox.id), "method": "GET", "path": "/api/x", "headers": key_of(sandbox)}
    return request | {"body": None} | fields


def test_response_is_the_agent_server_s(api: httpx.Client, user: ApiUser, agent: Agent, running: Sandbox) -> None:
    response = send(api, user, running, path="/api/git/commits?path=%2Fworkspace&limit=5")
    assert (response.status_code, response.json()["target"]) == (200, "/api/git/commits?path=%2Fworkspace&limit=5")
    assert response.headers["X-Own"] == "kept"
    assert (response.headers["Content-Security-Policy"], "Set-Cookie" in response.headers) == ("sandbox", False)
    [got] = agent.server.got
    assert (got.method, got.body_bytes, got.header("authorization")) == ("GET", 0, None)


@pytest.mark.parametrize(
    ("body", "headers", "sent", "content_type"),
    [
        ({"accept": True}, {}, b'{"accept": true}', "application/json"),
        ({}, {"Content-Length": "7", "Transfer-Encoding": "chunked"}, b"{}", "application/json"),
        ([1], {"Content-Type": "application/x-own"}, b"[1]", "application/x-own"),
        ("as it is", {"content-type": "text/plain"}, b"as it is", "text/plain"),
    ],
)
def test_body_is_passed_on(
    api: httpx.Client,
    user: ApiUser,
    agent: Agent,
    running: Sandbox,
    body: Any,
    headers: dict[str, str],
    sent: bytes,
    content_type: str,
) -> None:
    response = send(api, user, running, method="POST", body=body, headers=key_of(running) | headers)
    assert (response.status_code, response.json()["sha"]) == (200, hashlib.sha256(sent).hexdigest())
    assert agent.server.got[0].header("content-type") == content_type


def test_response_to_head_is_complete(api: httpx.Client, user: ApiUser, agent: Agent, running: Sandbox) -> None:
    """It names the length of the response to GET, and has no content."""
    for _ in range(2):
        response = send(api, user, running, method="HEAD")
        assert (response.status_code, response.content, response.headers["X-Own"]) == (200, b"", "kept")
    assert [got.method for got in agent.server.got] == ["HEAD", "HEAD"]


def test_large_body_counts_until_its_response_has_ended(serve: Serve, user: ApiUser, running: Sandbox) -> None:
    """The API keeps it for as long: a sandbox that never responds would fill the memory."""
    large = {"method": "POST", "path": "/stream", "body": "x" * 2 * SMALL_BYTES}
    size = len(json.dumps(enclose(running, **large)))
    with serve(max_body_bytes=size) as api, ExitStack() as responses:
        for _ in range(BODIES_OF_USER):
            begun = api.stream("POST", PATH, json=enclose(running, **large), headers=user.headers)
            assert responses.enter_context(begun).status_code == 200
        assert send(api, user, running, **large).status_code == 429
        assert send(api, user, running).status_code == 200
        responses.close()
        eventually(lambda: send(api, user, running, **large | {"path": "/api/x"}).status_code == 200)


def test_agent_server_s_redirect_stays_on_the_sandbox_path(api: httpx.Client, user: ApiUser, running: Sandbox) -> None:
    response = send(api, user, running, path="/moved")
    assert (response.status_code, response.headers["Location"]) == (307, f"/sandbox/{running.id}/moved/")


def test_url_of_the_client_port_is_accepted(
    serve: Serve, user: ApiUser, other_user: ApiUser, agent: Agent, running: Sandbox
) -> None:
    with serve(client_port=3002, client_url="http://clients.example/") as api:
        for host in ("http://clients.example", "http://clients.example/"):
            assert send(api, user, running, host=host).status_code == 200
            # This URL is that of all users' sandboxes: only the key selects one.
            assert send(api, other_user, running, host=host).status_code == 404
        for host in ("http://127.0.0.1:1", agent.url):
            assert send(api, user, running, host=host).status_code == 404
    assert len(agent.server.got) == 2


def test_paused_sandbox_is_woken(api: httpx.Client, user: ApiUser, paused: Sandbox, worker: Worker) -> None:
    assert send(api, user, paused).status_code == 200
    assert worker.resumed == [paused.id]


def test_proxy_reaches_only_the_caller_s_sandboxes(
    api: httpx.Client, database: Database, user: ApiUser, other_user: ApiUser, agent: Agent, running: Sandbox
) -> None:
    theirs = make_sandbox(database, other_user, exposed_urls=agent.urls)
    assert send(api, other_user, running).status_code == 404
    assert send(api, other_user, running, host=agent.url).status_code == 404
    assert send(api, user, theirs).status_code == 404
    assert send(api, user, theirs, headers=key_of(running)).status_code == 404
    deleted = make_sandbox(database, user, status=Status.DELETED)
    assert send(api, user, deleted).status_code == 404
    mine = make_sandbox(database, user, exposed_urls=agent.urls)
    assert send(api, user, mine, headers=key_of(running)).status_code == 401
    assert send(api, user, running, headers={}).status_code == 401
    assert agent.server.got == []


@pytest.mark.parametrize(
    "host",
    [
        "https://elsewhere.example",
        "http://169.254.169.254/latest",
        "file:///etc/passwd",
        "",
        "http://a/sandbox/" + "0" * 32,
        "http://a/sandbox/" + "0" * 32 + "/../../x",
        "http://a@b/sandbox/x",
    ],
)
def test_proxy_reaches_no_other_host(
    api: httpx.Client, user: ApiUser, agent: Agent, running: Sandbox, host: str
) -> None:
    assert send(api, user, running, host=host).status_code == 404
    assert agent.server.got == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"path": "api/x"},
        {"path": "/api/x\r\nX: y"},
        {"path": "/a b"},
        {"method": "CONNECT"},
        {"headers": {"X": "a\r\nb: c"}},
        {"headers": {"a b": "c"}},
        {"host": None},
        {"headers": {f"x-{number}": "1" for number in range(60)}},
    ],
)
def test_malformed_envelope_is_refused(
    api: httpx.Client, user: ApiUser, agent: Agent, running: Sandbox, wrong: dict[str, Any]
) -> None:
    assert send(api, user, running, **wrong).status_code == 422
    assert agent.server.got == []


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("[" * 970 + '"' + "x" * SMALL_BYTES + '"' + "]" * 970, "nested deeper than 100 levels"),
        ("[" * 101 + "]" * 101, "nested deeper than 100 levels"),
        ("[NaN]", "NaN and infinities are not JSON"),
    ],
    ids=("deep and large", "deep", "NaN"),
)
def test_body_that_is_nested_too_deep_or_is_no_json_is_refused(
    api: httpx.Client, user: ApiUser, agent: Agent, running: Sandbox, body: str, why: str
) -> None:
    envelope = json.dumps({"host": HOST.format(running.id), "method": "POST", "path": "/x", "headers": key_of(running)})
    content = f'{envelope[:-1]}, "body": {body}}}'
    response = api.post("/api/cloud-proxy", content=content, headers=user.headers | JSON)
    assert (response.status_code, agent.server.got) == (422, [])
    [entry] = response.json()["detail"]
    assert (entry["loc"], why in entry["msg"]) == (["body", "body"], True)


def test_unreachable_agent_server_is_a_502(api: httpx.Client, database: Database, user: ApiUser) -> None:
    nowhere = [{"name": "AGENT_SERVER", "url": "http://127.0.0.1:1", "port": 8000}]
    assert send(api, user, make_sandbox(database, user, exposed_urls=nowhere)).status_code == 502


def test_page_of_this_service_is_allowed(api: httpx.Client, user: ApiUser, running: Sandbox) -> None:
    origin = str(api.base_url).rstrip("/")
    api.post("/login", data={"api_key": user.key}, headers={"Origin": origin})
    envelope = {"host": f"{origin}/sandbox/{running.id}", "path": "/api/x", "headers": key_of(running)}
    for page, status in ((origin, 200), ("https://elsewhere.example", 403)):
        response = api.post("/api/cloud-proxy", json=envelope, headers={"Origin": page})
        assert response.status_code == status


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/git/commits?path=%2Fworkspace&limit=5", None),
        ("GET", "/api/git/diff?path=%2Fworkspace%2Fa.py&commit=abc", None),
        ("POST", f"/api/conversations/{'0' * 32}/events/respond_to_confirmation", {"accept": True}),
        ("POST", f"/api/conversations/{'0' * 32}/condense", {}),
    ],
)
def test_defect_51_requests_of_canvas_by_way_of_its_server_are_passed_on(
    api: httpx.Client, user: ApiUser, agent: Agent, running: Sandbox, method: str, path: str, body: Any
) -> None:
    assert send(api, user, running, method=method, path=path, body=body).status_code == 200
    [got] = agent.server.got
    assert (got.method, got.body_bytes > 0) == (method, body is not None)
