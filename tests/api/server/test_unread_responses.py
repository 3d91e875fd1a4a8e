"""Responses that clients do not read keep a limited memory in a process."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from api.server.connections import LimitedHttp, limited_http
from api.server.limits import ConnectionLimits
from api.server.slow_connections import SlowConnections
from tests.api.server.test_connections import LIMITED, REQUEST, address_of, answer_of
from tests.api.server.test_crowded_reads import HANDSHAKE
from tests.api.server.test_slow_clients import Address, is_reset, send
from tests.api.server.test_slow_readers import LARGE, LAST, OK, Client, unread
from tests.services.asgi import serving
from tests.waiting import eventually

MIB = 1024 * 1024
RESPONSE_BYTES, MAX_UNREAD, CLIENTS = 8 * MIB, 32 * MIB, 16
OTHER = REQUEST.replace(b"GET /", b"GET /other")


class Application:
    """Responds with 8 MiB in one message on the path /large, and notes what all connections keep unread then."""

    def __init__(self) -> None:
        self.unread: list[int] = []
        self.paths: list[str] = []
        self.connections: set[Any] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.paths.append(scope["path"] if scope["type"] == "http" else scope["type"])
        if scope["type"] != "http":
            return
        protocol: LimitedHttp = receive.__self__.on_response.__self__
        self.connections = protocol.connections
        size = RESPONSE_BYTES if scope["path"] == "/large" else 2
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % size)]})
        await send({"type": "http.response.body", "body": b"o" * size})
        transports = [each.transport for each in self.connections]
        self.unread.append(sum(each.get_write_buffer_size() for each in transports if not each.is_closing()))


@pytest.fixture
def application() -> Application:
    return Application()


@pytest.fixture
def address(application: Application) -> Iterator[Address]:
    own = LIMITED | {"http": limited_http(ConnectionLimits(unread_bytes=MAX_UNREAD))}
    with serving(application, lifespan="off", timeout_keep_alive=600, **own) as url:
        yield address_of(url)


def test_clients_that_do_not_read_use_limited_memory_and_block_no_others(
    address: Address, application: Application
) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(unread(address, [LARGE])) for _ in range(CLIENTS)]
        assert send(address) == OK
        with socket.create_connection(address, timeout=30) as reader:
            reader.sendall(LAST)
            assert len(answer_of(reader)) > RESPONSE_BYTES
        assert max(application.unread) <= MAX_UNREAD + RESPONSE_BYTES
        # The oldest have lost their connections. The newest keeps its own.
        assert eventually(lambda: is_reset(clients[0]))
        assert not is_reset(clients[-1])


@pytest.mark.parametrize(
    "requests",
    [[LARGE + REQUEST], [LARGE, REQUEST], [LARGE, HANDSHAKE]],
    ids=["together", "later", "websocket"],
)
def test_request_waits_until_the_client_has_read_the_response_to_the_previous_one(
    address: Address, application: Application, requests: list[bytes]
) -> None:
    with unread(address, requests) as client:
        assert send(address, OTHER) == OK
        assert application.paths == ["/large", "/other"]
        received = 0
        while received < RESPONSE_BYTES:
            received += len(client.recv(65_536))
        assert eventually(lambda: application.paths == ["/large", "/other", "/"])


@pytest.mark.parametrize("pipelined", [REQUEST, REQUEST * 3])
def test_request_is_dropped_if_its_client_leaves_before_it_has_read_the_previous_response(
    address: Address, application: Application, caplog: pytest.LogCaptureFixture, pipelined: bytes
) -> None:
    with unread(address, [LARGE, pipelined]):
        assert send(address, OTHER) == OK
    assert eventually(lambda: not application.connections)
    assert send(address, OTHER) == OK
    assert application.paths == ["/large", "/other", "/other"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_slowest_readers_lose_their_connections_until_an_eighth_is_free() -> None:
    slow = SlowConnections[Client](max_unread=800)
    readers = [Client(read_rate=rate, unread_bytes=100) for rate in (500, 3, 1, 400, 2, 400, 500, 600, 0)]
    for one in readers[:-1]:
        slow.add_unread(one)
    assert slow.take_excess(but=readers[-2]) == []
    slow.add_unread(readers[-1])
    # The last one is the slowest, but it has just been added.
    assert slow.take_excess(but=readers[-1]) == [readers[2], readers[4]]
    assert slow.take_excess(but=readers[-1]) == []


def test_bytes_that_clients_have_read_are_no_longer_counted() -> None:
    slow = SlowConnections[Client](max_unread=800)
    readers = [Client(unread_bytes=800), Client(unread_bytes=500)]
    slow.add_unread(readers[0])
    readers[0].unread_bytes = 200
    slow.add_unread(readers[1])
    assert slow.take_excess(but=readers[1]) == []
    readers[0].unread_bytes = 400
    slow.add_unread(readers[0])
    assert slow.take_excess(but=readers[1]) == [readers[0]]
