"""Clients that disconnect while their requests run, and clients that lose their network: TCP's own probes end these."""

import socket
import threading
from contextlib import closing
from typing import Any

import pytest

from api.server.sockets import open_sockets
from shared.settings import Settings
from tests.api.server.test_connections import LIMITED, REQUEST, address_of
from tests.services.asgi import serving
from tests.services.lost_peers import seconds_until_lost
from tests.services.ports import Port


def test_connection_ends_if_its_client_is_lost() -> None:
    with Port() as port:
        [listener] = open_sockets(Settings(port=port, client_port=0), shared=True)
        with (
            closing(listener),
            closing(socket.create_connection(("127.0.0.1", port))),
            listener.accept()[0] as accepted,
        ):
            assert seconds_until_lost(accepted) == 60


@pytest.mark.parametrize("pieces", [[REQUEST], [REQUEST * 2], [REQUEST, REQUEST]], ids=["alone", "together", "later"])
def test_request_ends_if_its_client_disconnects_although_another_one_waits_behind_it(pieces: list[bytes]) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def follow(_scope: Any, receive: Any, _send: Any) -> None:
        begun.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        ended.set()

    with serving(follow, lifespan="off", **LIMITED) as url:
        with socket.create_connection(address_of(url)) as connection:
            for piece in pieces:
                connection.sendall(piece)
                assert begun.wait(30)
        assert ended.wait(30)
