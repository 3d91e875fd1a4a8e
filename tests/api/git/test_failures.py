"""Failures of a provider or of the connection: each has its status, and no error or log contains the token."""

import gzip
import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import httpcore
import pytest

from api.git import http_client as git_client
from api.git.guarded_transport import GuardedBackend
from shared.addresses import is_public
from tests.factories import ApiUser
from tests.fakes.git_host import FakeGitHost
from tests.fakes.git_requests import TOKEN
from tests.fixtures.git_host import PROVIDERS
from tests.waiting import eventually

Ask = Callable[..., Any]


@pytest.fixture
def search(send: Ask, connect: Ask, user: ApiUser) -> Ask:
    """Search the user's repositories at GitHub."""
    connect(user, "github")
    return lambda: send(user, "repositories", provider="github")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_rejected_token_is_a_403(
    connect: Ask, send: Ask, user: ApiUser, provider: str, capfd: pytest.CaptureFixture[str]
) -> None:
    connect(user, provider, token="other-in-clear")
    for what, params in (("repositories", {}), ("branches", {"repository": "acme/app", "query": ""})):
        response = send(user, what, provider=provider, **params)
        # A 401 would mean that the client's own key is wrong.
        assert (response.status_code, f"{provider} does not accept" in response.json()["detail"]) == (403, True)
        assert "in-clear" not in response.text
    assert "in-clear" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("instead", "status"),
    [
        ((400, {}, {}), 400),
        ((403, {}, {}), 403),
        ((403, {"X-RateLimit-Remaining": "0"}, {}), 503),
        ((403, {}, {"message": "You have exceeded a secondary Rate Limit."}), 503),
        ((404, {}, {}), 404),
        ((409, {}, {}), 400),
        ((422, {}, {}), 400),
        ((429, {"Retry-After": "7"}, {}), 503),
        ((500, {}, {"message": TOKEN}), 502),
        ((503, {}, b""), 502),
        ((301, {"Location": "http://169.254.169.254/"}, b""), 502),
        ((200, {}, b"<html>"), 502),
        ((203, {}, b"<html>"), 403),
        ((200, {}, b"[" * 100_000), 502),
        ((200, {}, b'[{"id": 1, "full_name": "a/\\ud800", "pushed_at": "\\udfff"}]'), 200),
        ((200, {}, {"message": "no list"}), 502),
        ((200, {}, [{"id": 1}]), 502),
        ((200, {}, [None]), 502),
        ((200, {"Link": "<<<>;;rel="}, []), 200),
    ],
    ids=lambda value: str(value)[:60],
)
def test_provider_status_determines_the_response_status(
    search: Ask, git_host: FakeGitHost, instead: Any, status: int
) -> None:
    git_host.instead = instead
    response = search()
    assert response.status_code == status
    assert TOKEN not in response.text
    if status != 200:
        assert response.json().keys() == {"detail", "request_id"}
    if status == 503:
        assert response.headers["Retry-After"] == instead[1].get("Retry-After", "60")


@pytest.mark.parametrize("text", ["9" * 5000, "1.5", "soon"], ids=("long", "decimal", "word"))
def test_unreadable_retry_after_is_a_minute(search: Ask, git_host: FakeGitHost, text: str) -> None:
    git_host.instead = (429, {"Retry-After": text}, {})
    response = search()
    assert (response.status_code, response.headers["Retry-After"]) == (503, "60")


def test_session_cookie_of_a_host_is_not_sent_for_another_user(
    search: Ask, connect: Ask, send: Ask, git_host: FakeGitHost, other_user: ApiUser
) -> None:
    git_host.instead = (200, {"Set-Cookie": "session=alice; Path=/"}, [])
    search()
    connect(other_user, "github")
    send(other_user, "repositories", provider="github")
    search()
    assert [requested.cookie for requested in git_host.got] == ["", "", ""]


@pytest.mark.parametrize("times", [1, 2])
def test_encoded_response_is_not_decoded(search: Ask, git_host: FakeGitHost, times: int) -> None:
    content = b"[]"
    for _ in range(times):
        content = gzip.compress(content)
    git_host.instead = (200, {"Content-Encoding": ", ".join(["gzip"] * times)}, content)
    response = search()
    assert (response.status_code, "is encoded" in response.json()["detail"]) == (502, True)


def test_non_ascii_token_is_a_403(connect: Ask, send: Ask, user: ApiUser) -> None:
    for provider in PROVIDERS:
        connect(user, provider, token="schlüssel")
        assert send(user, "repositories", provider=provider).status_code == 403


def test_slow_response_is_a_504(search: Ask, git_host: FakeGitHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_client, "SECONDS", 0.2)
    git_host.delay_seconds = 2.0
    assert search().status_code == 504


def test_large_response_is_a_502(search: Ask, git_host: FakeGitHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_client, "MAX_BYTES", 1000)
    git_host.instead = (200, {}, [{"id": "x" * 2000}])
    assert search().status_code == 502


def test_unknown_host_name_is_a_502(connect: Ask, send: Ask, user: ApiUser, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise socket.gaierror("no such name")

    # The administrator allows only the first host.
    monkeypatch.setattr(socket, "getaddrinfo", fail)
    for host in ("other.example.com", "none.example.com"):
        connect(user, "github", host=f"https://{host}")
        response = send(user, "repositories", provider="github")
        assert (response.status_code, "can't be reached" in response.json()["detail"]) == (502, True)


def test_user_without_a_token_gets_a_403(send: Ask, connect: Ask, user: ApiUser, other_user: ApiUser) -> None:
    connect(other_user, "github")
    for what, params in (
        ("installations", {"provider": "github"}),
        ("repositories", {"provider": "github"}),
        ("branches", {"provider": "github", "repository": "acme/app", "query": ""}),
        ("suggested-tasks", {}),
    ):
        assert send(user, what, **params).status_code == 403
    connect(user, "gitlab")
    response = send(user, "repositories", provider="github")
    assert (response.status_code, "github" in response.json()["detail"]) == (403, True)


PRIVATE = [
    "127.0.0.1",
    "10.1.2.3",
    "172.17.0.1",
    "192.168.0.1",
    "169.254.169.254",
    "168.63.129.16",
    "192.88.99.1",
    "100.64.0.1",
    "0.0.0.0",
    "224.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "fe80::1",
    "fd00::1",
    "::ffff:127.0.0.1",
    "64:ff9b::7f00:1",
    "::ffff:140.82.121.4",
    "64:ff9b::8c52:7904",
    "2002:7f00:1::",
    "2002:8c52:7904::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
    "3fff::1",
    "4000::1",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_private_addresses_are_refused(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", ["140.82.121.4", "2606:4700::1111"])
def test_public_addresses_are_accepted(address: str) -> None:
    assert is_public(ip_address(address))


INSIDE = [
    "http://127.0.0.1:1",
    "http://github.example.com",
    "127.0.0.1",
    "https://127.1",
    "https://2130706433",
    "[::1]",
]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_hosts_on_the_machine_and_its_networks_get_no_request(
    connect: Ask, send: Ask, user: ApiUser, git_host: FakeGitHost, provider: str
) -> None:
    for host in INSIDE:
        connect(user, provider, host=f"{host}/acme")
        response = send(user, "repositories", provider=provider)
        assert (response.status_code, "host" in response.json()["detail"]) == (403, True), host
    assert git_host.got == []


SHAPES: list[Any] = [{}, 3, "x", None, [[]], [3], {"values": 3}, {"values": [3]}, {"value": [3]}, {"data": {}}]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_response_of_another_shape_is_a_502(
    connect: Ask, send: Ask, user: ApiUser, git_host: FakeGitHost, provider: str
) -> None:
    connect(user, provider)
    for shape in SHAPES:
        git_host.instead = (200, {}, shape)
        for what, params in (
            ("repositories", {}),
            ("repositories", {"query": "app"}),
            ("branches", {"repository": "acme/app", "query": ""}),
            ("branches", {"repository": "acme/app", "query": "x"}),
        ):
            response = send(user, what, provider=provider, **params)
            # In GraphQL, which searches GitHub's branches, this response means an unknown repository.
            unknown = (provider, params.get("query"), shape) == ("github", "x", {"data": {}})
            assert response.status_code == (404 if unknown else 502), (what, params, shape, response.text)


@pytest.mark.parametrize("addresses", [("127.0.0.1",), ("140.82.121.4", "10.0.0.1"), ("::1",)])
def test_name_that_resolves_to_a_private_address_gets_no_request(
    connect: Ask,
    send: Ask,
    user: ApiUser,
    git_host: FakeGitHost,
    addresses: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect(user, "github", host="https://evil.example.com")
    monkeypatch.setattr(socket, "getaddrinfo", _resolve_to(*addresses))
    response = send(user, "repositories", provider="github")
    assert (response.status_code, "AW_GIT_HOSTS" in response.json()["detail"]) == (403, True)
    assert git_host.got == []


def test_connection_is_made_to_a_checked_address_and_not_to_the_name(
    connect: Ask, send: Ask, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name could resolve to a private address the next time."""
    dialled: list[str] = []

    async def connect_tcp(_self: Any, host: str, *_: Any, **__: Any) -> Any:
        dialled.append(host)
        raise httpcore.ConnectError("refused")

    connect(user, "github", host="https://other-name.example.com")
    monkeypatch.setattr(socket, "getaddrinfo", _resolve_to("140.82.121.4", "2606:4700::1111"))
    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect_tcp)
    assert send(user, "repositories", provider="github").status_code == 502
    assert dialled == ["140.82.121.4", "2606:4700::1111"]


def test_other_ports_of_a_listed_host_get_no_request(connect: Ask, send: Ask, user: ApiUser) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        connect(user, "github", host=f"http://127.0.0.1:{other.getsockname()[1]}")
        assert send(user, "repositories", provider="github").status_code == 403


def test_connections_are_reused(search: Ask, git_host: FakeGitHost, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    real_connect = GuardedBackend.connect_tcp

    async def connect_tcp(self: Any, *args: Any, **options: Any) -> Any:
        opened.append(args)
        return await real_connect(self, *args, **options)

    monkeypatch.setattr(GuardedBackend, "connect_tcp", connect_tcp)
    assert [search().status_code for _ in range(3)] == [200] * 3
    eventually(lambda: len(git_host.got) == 3)
    assert len(opened) == 1


def _resolve_to(*addresses: str) -> Callable[..., Any]:
    def resolve(_host: Any, port: Any, *_: Any, **__: Any) -> Any:
        kinds = {address: socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses}
        return [(kind, socket.SOCK_STREAM, 6, "", (address, port)) for address, kind in kinds.items()]

    return resolve
