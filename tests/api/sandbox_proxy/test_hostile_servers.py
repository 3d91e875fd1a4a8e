"""An agent server under an attacker's control. Its responses have this service's origin, and no rights there."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from api.sandbox_proxy.headers import DROPPED_FROM_RESPONSES, HOP_BY_HOP
from shared.db.database import Database
from shared.models import Sandbox
from tests.api.sandbox_proxy.doubles import key_of
from tests.factories import ApiUser, make_sandbox
from tests.services import hostile_server

# Headers of a response that affect the whole origin in a browser, or make it or a proxy send requests elsewhere.
ORIGIN_HEADERS = {
    "Accept-CH": "Sec-CH-UA-Model",
    "Alt-Svc": 'h3=":443"',
    "Attribution-Reporting-Register-Source": "{}",
    "Attribution-Reporting-Register-Trigger": "{}",
    "Clear-Site-Data": '"*"',
    "Content-Security-Policy": "default-src *",
    "Content-Security-Policy-Report-Only": "default-src 'none'; report-uri https://elsewhere.example/",
    "Critical-CH": "Sec-CH-UA-Model",
    "Link": "<https://elsewhere.example/>; rel=preload; as=script",
    "NEL": '{"report_to":"a","max_age":1}',
    "Origin-Trial": "a",
    "Public-Key-Pins": "max-age=1",
    "Refresh": "0; url=https://elsewhere.example/",
    "Report-To": "{}",
    "Reporting-Endpoints": 'a="https://elsewhere.example/"',
    "Sec-Session-Registration": '(ES256);path="/x"',
    "Secure-Session-Registration": '(ES256);path="/x"',
    "Service-Worker-Allowed": "/",
    "Set-Cookie": "aw_session=theirs; Path=/",
    "Set-Cookie2": "aw_session=theirs; Path=/",
    "Set-Login": "logged-out",
    "Sourcemap": "https://elsewhere.example/",
    "Speculation-Rules": '"/rules"',
    "Strict-Transport-Security": "max-age=1",
    "Use-As-Dictionary": 'match="/*"',
    "WWW-Authenticate": "Basic",
    "X-Accel-Charset": "utf-7",
    "X-Accel-Expires": "3600",
    "X-Accel-Limit-Rate": "1",
    "X-Accel-Redirect": "/api/v1/users/me",
    "X-Content-Type-Options": "none",
    "X-Lighttpd-Send-File": "/etc/passwd",
    "X-Reproxy-URL": "http://127.0.0.1/",
    "X-Sendfile": "/etc/passwd",
    "X-SourceMap": "https://elsewhere.example/",
}
# Headers that this service sets itself.
OWN_HEADERS = {
    "Cache-Control": "public",
    "CDN-Cache-Control": "max-age=3600",
    "Example-CDN-Cache-Control": "public, max-age=3600",
    "Edge-Control": "cache-maxage=1h",
    "Surrogate-Control": "max-age=60",
    "Date": "Thu, 01 Jan 1970 00:00:00 GMT",
    "Expires": "Thu, 01 Jan 2099 00:00:00 GMT",
    "Pragma": "public",
    "Server": "theirs",
    "X-Request-ID": "theirs",
}


@contextmanager
def answering(response: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Run a server that sends this to each client and disconnects; yield its URL and its requests."""
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    got.append(connection.recv(65_536))
                    connection.sendall(response)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", got
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


@contextmanager
def hostile(database: Database, user: ApiUser, response: bytes) -> Iterator[Sandbox]:
    """A sandbox of the user, whose agent server sends this to each client."""
    with answering(response) as (url, _):
        yield make_sandbox(database, user, exposed_urls=[{"name": "AGENT_SERVER", "url": url, "port": 8000}])


def moved(location: str, status: int = 307) -> bytes:
    return f"HTTP/1.1 {status} Moved\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


def test_websocket_follows_no_redirect(api: httpx.Client, database: Database, user: ApiUser) -> None:
    with answering(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n") as (inside, got):
        location = inside.replace("http", "ws", 1) + "/of/another"
        for status in (300, 301, 302, 303, 307, 308):
            with hostile(database, user, moved(location, status)) as sandbox:
                url = f"{str(api.base_url).replace('http', 'ws', 1)}/sandbox/{sandbox.id}/sockets/events/1"
                with connect(url, additional_headers=key_of(sandbox), proxy=None) as connection:
                    with pytest.raises(ConnectionClosed):
                        connection.recv(timeout=20)
                    assert connection.close_code == 1014
    assert got == []


@pytest.mark.parametrize("character", ["\x01", "\x1b", "\x7f"])
def test_header_with_a_control_character_is_left_out(
    api: httpx.Client, database: Database, user: ApiUser, character: str
) -> None:
    head = f"HTTP/1.1 200 OK\r\nX-Own: kept\r\nX-Other: a{character}b\r\nContent-Length: 2\r\n\r\n"
    with hostile(database, user, f"{head}ok".encode()) as sandbox:
        response = api.get(f"/sandbox/{sandbox.id}/api/x", headers=key_of(sandbox))
    assert (response.status_code, response.text, response.headers["X-Own"]) == (200, "ok", "kept")
    assert "X-Other" not in response.headers


REDIRECTS = {
    "/a/b?c=%2Fd#e": "/a/b?c=%2Fd#e",
    "b": "/api/b",
    "?c=d": "/api/x?c=d",
    "./../b": "/b",
    "/a/../b": "/b",
    "/a;b/%20": "/a;b/%20",
    "b?c=../../d": "/api/b?c=../../d",
    # Paths above the root stay at the root.
    "/../../logout": "/logout",
    "../../../logout": "/logout",
    "/%2e%2E/%2e./logout": "/logout",
    "/a/..": "/",
    "": None,
    "/a/..\\..\\..\\logout": None,
    "/\\elsewhere.example": None,
    "//elsewhere.example/a": None,
    "https://elsewhere.example/a": None,
    "{api}/logout": None,
    "//{host}/logout": None,
    "javascript:alert(1)": None,
    "data:text/html,a": None,
    "http:/logout": None,
    "http:logout": None,
    "/a\tb": None,
    "/\xe9": None,
}


@pytest.mark.parametrize("status", [201, 307])
def test_redirect_stays_on_the_path_of_its_sandbox(
    api: httpx.Client, database: Database, user: ApiUser, status: int
) -> None:
    base = str(api.base_url).rstrip("/")
    for location, expected in REDIRECTS.items():
        sent = location.replace("{api}", base).replace("{host}", base.partition("//")[2])
        with hostile(database, user, moved(sent, status)) as sandbox:
            direct = api.get(f"/sandbox/{sandbox.id}/api/x?y=z", headers=key_of(sandbox))
            envelope = {"host": f"{base}/sandbox/{sandbox.id}", "path": "/api/x?y=z", "headers": key_of(sandbox)}
            enclosed = api.post("/api/cloud-proxy", json=envelope, headers=user.headers)
            for response in (direct, enclosed):
                assert response.status_code == status, location
                assert response.headers.get("Location") == (expected and f"/sandbox/{sandbox.id}{expected}"), location


@pytest.mark.parametrize("target", ["//[x", "//x]/y?z"])
def test_redirect_of_a_target_that_is_no_url_is_dropped(
    api: httpx.Client, database: Database, user: ApiUser, target: str
) -> None:
    with hostile(database, user, moved("/elsewhere", 302)) as sandbox:
        extensions = {"target": f"/sandbox/{sandbox.id}{target}".encode()}
        response = api.get("/", headers=key_of(sandbox), extensions=extensions)
    assert (response.status_code, "Location" in response.headers) == (302, False)


@pytest.mark.parametrize("status", [204, 304])
def test_response_without_content_may_name_a_length(
    api: httpx.Client, database: Database, user: ApiUser, status: int
) -> None:
    """A 304 may name that of the response that the client has already (RFC 9110, section 8.6)."""
    with hostile(database, user, f"HTTP/1.1 {status} None\r\nContent-Length: 5\r\n\r\n".encode()) as sandbox:
        for _ in range(2):
            response = api.get(f"/sandbox/{sandbox.id}/x", headers=key_of(sandbox) | {"If-None-Match": '"a"'})
            assert (response.status_code, response.content) == (status, b"")


def test_server_s_headers_for_the_whole_origin_are_dropped(
    api: httpx.Client, database: Database, user: ApiUser
) -> None:
    sent, page = ORIGIN_HEADERS | OWN_HEADERS, b"<script>alert(1)</script>"
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {len(page)}\r\n"
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    with hostile(database, user, f"{head}{lines}\r\n".encode() + page) as sandbox:
        response = api.get(f"/sandbox/{sandbox.id}/x.html", headers=key_of(sandbox))
    assert (response.status_code, response.content) == (200, page)
    own = {"content-security-policy": "sandbox", "x-content-type-options": "nosniff"}
    assert {name: response.headers[name] for name in ORIGIN_HEADERS if name in response.headers} == {
        name: own[name.lower()] for name in ORIGIN_HEADERS if name.lower() in own
    }
    assert [name for name, value in sent.items() if value in response.headers.get_list(name)] == []
    assert len(response.headers.get_list("X-Request-ID")) == 1


def test_each_dropped_header_is_tested() -> None:
    """Hop-by-hop headers have tests of their own."""
    tested = {name.lower().encode() for name in ORIGIN_HEADERS | OWN_HEADERS}
    assert DROPPED_FROM_RESPONSES - HOP_BY_HOP - tested == frozenset()


def test_interim_responses_without_end_are_a_502(api: httpx.Client, database: Database, user: ApiUser) -> None:
    with hostile_server.hostile(hostile_server.promising) as server:
        urls = [{"name": "AGENT_SERVER", "url": server.url, "port": 8000}]
        sandbox = make_sandbox(database, user, exposed_urls=urls)
        assert api.get(f"/sandbox/{sandbox.id}/x", headers=key_of(sandbox), timeout=20).status_code == 502


INVALID_RESPONSES = [
    b"",
    b"\x00" * 100,
    b"HTTP/1.1 99 Odd\r\n\r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    b"HTTP/1.1 600 Odd\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\na",
    b"HTTP/1.1 200 OK\r\nX: a\rb\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nX: " + b"a" * 1_000_000 + b"\r\n\r\n",
]


def test_server_that_sends_no_valid_http_is_a_502(api: httpx.Client, database: Database, user: ApiUser) -> None:
    for response in INVALID_RESPONSES:
        with hostile(database, user, response) as sandbox:
            got = api.get(f"/sandbox/{sandbox.id}/x", headers=key_of(sandbox))
            envelope = {"host": f"http://a/sandbox/{sandbox.id}", "path": "/x", "headers": key_of(sandbox)}
            enclosed = api.post("/api/cloud-proxy", json=envelope, headers=user.headers)
        assert (got.status_code, enclosed.status_code) == (502, 502), response[:50]
        assert json.loads(got.content)["detail"]
