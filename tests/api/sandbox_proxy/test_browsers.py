"""Signed-in browsers: URLs of sandboxes are on this service's origin, and the login is not passed on."""

import json
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from api.request.session_cookie import COOKIE
from shared.db.database import Database
from shared.models import Conversation, Sandbox
from shared.states import Stage
from tests.api.sandbox_proxy.doubles import Agent, Serve, key_of
from tests.factories import ApiUser, make_conversation, make_sandbox, make_start_task, session_key_of

LIST = "/api/v1/app-conversations/search"


def sign_in(api: httpx.Client, user: ApiUser) -> str:
    """Sign the client in as a browser; return this service's origin."""
    origin = str(api.base_url).rstrip("/")
    api.headers["Origin"] = origin
    assert api.post("/login", data={"api_key": user.key}).status_code == 303
    return origin


@pytest.fixture
def conversation(database: Database, user: ApiUser, running: Sandbox) -> Conversation:
    return make_conversation(database, user, running)


def urls(api: httpx.Client, conversation: Conversation, headers: dict[str, str] | None = None) -> set[str]:
    """The URLs of the conversation's agent server in all responses."""

    def get(path: str) -> Any:
        response = api.get(path, headers=headers)
        assert response.status_code == 200, response.text
        return response.json()

    by_id = f"/api/v1/app-conversations/{conversation.id}"
    shown = [*get(f"/api/v1/app-conversations?ids={conversation.id}"), *get(LIST)["items"], get(by_id)]
    found = {one["conversation_url"].removesuffix(f"/api/conversations/{conversation.id}") for one in shown}
    legacy = [get(f"/api/conversations/{conversation.id}"), *get("/api/conversations")["results"]]
    found |= {one["url"].removesuffix(f"/api/conversations/{conversation.id}") for one in legacy}
    sandbox = f"/api/v1/sandboxes/{conversation.sandbox_id}"
    listed = get("/api/v1/sandboxes/search")["items"]
    shown = [get(sandbox), *listed, *get(f"/api/v1/sandboxes?id={conversation.sandbox_id}")]
    found |= {url["url"] for one in shown for url in one["exposed_urls"]}
    tasks = get("/api/v1/app-conversations/start-tasks/search")["items"]
    return found | {task["agent_server_url"] for task in tasks}


def test_browser_gets_the_sandbox_path_and_other_clients_the_client_port(
    serve: Serve, database: Database, user: ApiUser, running: Sandbox, conversation: Conversation
) -> None:
    make_start_task(database, user, running, stage=Stage.READY)
    with serve(client_port=3002) as api:
        for _ in range(2):  # the second time, lists are cached
            assert urls(api, conversation, user.headers) == {"http://127.0.0.1:3002"}
        origin = sign_in(api, user)
        for _ in range(2):
            assert urls(api, conversation) == {f"{origin}/sandbox/{running.id}"}
            assert urls(api, conversation, user.headers) == {"http://127.0.0.1:3002"}


@pytest.mark.parametrize(
    ("chosen", "shown"),
    [
        ({"client_port": 0, "web_url": "https://agents.example"}, "https://agents.example/sandbox/{id}"),
        ({"client_port": 4, "web_url": "http://agents.example:80/"}, "http://agents.example:4"),
        ({"client_port": 4, "web_url": "http://[::1]:80/"}, "http://[::1]:4"),
        # A key must not be sent without TLS because no URL with TLS is set.
        ({"client_port": 4, "web_url": "https://agents.example"}, "https://agents.example/sandbox/{id}"),
        ({"client_port": 4, "client_url": "https://clients.example/"}, "https://clients.example"),
    ],
)
def test_clients_with_a_key_get_the_url_of_the_client_port(
    serve: Serve, user: ApiUser, running: Sandbox, chosen: dict[str, Any], shown: str
) -> None:
    with serve(**chosen) as api:
        [url] = api.get(f"/api/v1/sandboxes/{running.id}", headers=user.headers).json()["exposed_urls"]
    assert url["url"] == shown.format(id=running.id)


def test_other_ports_are_below_the_sandbox_path(serve: Serve, database: Database, user: ApiUser, agent: Agent) -> None:
    other = {"name": "WORKER_1", "url": "http://127.0.0.1:8011", "port": 8011}
    sandbox = make_sandbox(database, user, exposed_urls=[*agent.urls, other])
    with serve(client_port=3002) as api:
        origin = sign_in(api, user)
        for headers in ({}, user.headers):
            for path in (f"/api/v1/sandboxes/{sandbox.id}", "/api/v1/sandboxes/search"):
                response = api.get(path, headers=headers).json()
                [found] = response.get("items", [response])
                assert found["exposed_urls"][1]["url"] == f"{origin}/sandbox/{sandbox.id}-8011"


def test_configured_origin_is_used(serve: Serve, user: ApiUser, conversation: Conversation) -> None:
    with serve(web_url="https://agents.example/") as api:
        api.headers["Origin"] = "https://agents.example"
        response = api.post("/login", data={"api_key": user.key})
        assert "secure" in response.headers["Set-Cookie"].lower()
        cookie = {"Cookie": response.headers["Set-Cookie"].partition(";")[0]}
        shown = api.get(f"/api/v1/app-conversations/{conversation.id}", headers=cookie).json()
        path = f"/sandbox/{conversation.sandbox_id}/api/conversations/{conversation.id}"
        assert shown["conversation_url"] == f"https://agents.example{path}"


@pytest.mark.parametrize(
    "host",
    [
        *("a b", "a/b", "a,b", '"><script>', "user@elsewhere.example", "[::1", "[:::::]", "[1.2.3.4]:80"),
        pytest.param("a" * 254, id="long"),
    ],
)
def test_malformed_host_is_not_part_of_the_origin(
    api: httpx.Client, user: ApiUser, conversation: Conversation, host: str
) -> None:
    sign_in(api, user)
    shown = api.get(f"/api/v1/app-conversations/{conversation.id}", headers={"Host": host})
    assert shown.json()["conversation_url"].startswith("http://127.0.0.1:3000/sandbox/")


def test_address_in_brackets_is_a_host(api: httpx.Client, user: ApiUser, conversation: Conversation) -> None:
    sign_in(api, user)
    shown = api.get(f"/api/v1/app-conversations/{conversation.id}", headers={"Host": "[::1]:3000"})
    assert shown.json()["conversation_url"].startswith("http://[::1]:3000/sandbox/")


def test_agent_server_gets_requests_without_the_login(
    api: httpx.Client, user: ApiUser, agent: Agent, running: Sandbox
) -> None:
    origin = sign_in(api, user)
    response = api.get(f"{origin}/sandbox/{running.id}/api/conversations", headers=key_of(running))
    assert response.status_code == 200
    [got] = agent.server.got
    assert got.header("cookie") is None
    assert not [value for _, value in got.headers if api.cookies[COOKIE] in value]
    assert response.headers.get_list("Content-Security-Policy") == ["sandbox"]
    assert response.headers.get_list("X-Content-Type-Options") == ["nosniff"]
    assert response.headers.get_list("Cache-Control") == ["no-store"]
    assert not {"set-cookie", "clear-site-data", "expires", "access-control-allow-origin"} & set(response.headers)


def test_login_is_not_a_key_of_a_sandbox(api: httpx.Client, user: ApiUser, agent: Agent, running: Sandbox) -> None:
    sign_in(api, user)
    assert api.get(f"/sandbox/{running.id}/api/conversations").status_code == 401
    assert agent.server.got == []


def test_websocket_reaches_the_agent_server_with_the_key_in_the_first_frame(
    api: httpx.Client, user: ApiUser, running: Sandbox
) -> None:
    origin = sign_in(api, user)
    url = f"{origin.replace('http', 'ws', 1)}/sandbox/{running.id}/sockets/events/1?resend_mode=all"
    cookie = {"Cookie": f"{COOKIE}={api.cookies[COOKIE]}", "Origin": origin}
    with connect(url, additional_headers=cookie) as socket:
        socket.send(json.dumps({"type": "auth", "session_api_key": session_key_of(running)}))
        assert socket.recv() == "/sockets/events/1?resend_mode=all"
        socket.send("hello")
        assert socket.recv() == "hello"
