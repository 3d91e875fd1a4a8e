"""A client that loses its network ends no connection: TCP's own probes end it."""

import socket
from contextlib import closing

from api.server.sockets import open_sockets
from shared.settings import Settings
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
