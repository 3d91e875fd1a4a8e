"""The product's connections to a cleared PostgreSQL database, which the tests of a process use one after the other.

A new connection costs PostgreSQL 4 to 5 ms, and then reads its catalogs again. So a connection that the product closes
is reset to the state of a new one and kept, and the next connection that the product opens continues it. The product
sees a closed connection and a new one.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import psycopg
import pytest
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGconn

from shared.db.postgresql import TimeoutConnection

RESET = "DISCARD ALL"
# A healthy server needs less than a millisecond.
RESET_SECONDS = 5.0
# The product's pools have 20 connections.
MAX_KEPT = 20
# The name of an attribute of a connection.
ADDRESS = "address"

Address = tuple[str, str]

# The unused connections, by the server's directory and the database.
_kept: dict[Address, list[PGconn]] = {}
# A child would share its parent's sockets.
os.register_at_fork(after_in_child=_kept.clear)
_open_new = TimeoutConnection._connect_gen.__func__  # type: ignore[attr-defined]
_close_really = TimeoutConnection.close


@contextmanager
def keeping_connections() -> Iterator[None]:
    """Keep the product's connections to databases for which `keep` was called, within the block."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TimeoutConnection, "_connect_gen", classmethod(_open))
        patch.setattr(TimeoutConnection, "close", _close)
        yield


def keep(address: Address) -> None:
    """Keep connections to this database from now on."""
    _kept[address] = []


def kept_pids(address: Address) -> list[int]:
    """The pids of the server's processes of the kept connections."""
    return [kept.backend_pid for kept in _kept[address]]


def close_kept(address: Address) -> None:
    """Close the kept connections to this database, and keep no more."""
    for kept in _kept.pop(address, []):
        kept.finish()


def _open(kind: type[TimeoutConnection], conninfo: str = "") -> Any:
    address = _address_of(conninfo)
    connection = _continue_kept(kind, _kept.get(address, [])) or (yield from _open_new(kind, conninfo))
    vars(connection)[ADDRESS] = address
    return connection


def _address_of(conninfo: str) -> Address:
    found = conninfo_to_dict(conninfo)
    return str(found.get("host")), str(found.get("dbname"))


def _continue_kept(kind: type[TimeoutConnection], kept: list[PGconn]) -> TimeoutConnection | None:
    while True:
        try:
            connection = kind(kept.pop())
        except IndexError:
            return None
        if _executes(connection, ""):  # a test may have ended the server's process
            return connection
        _close_really(connection)


def _close(connection: TimeoutConnection) -> None:
    kept = _kept.get(vars(connection).get(ADDRESS, ("", "")))
    if kept is None or len(kept) >= MAX_KEPT or not _executes(connection, RESET):
        _close_really(connection)
        return
    kept.append(connection.pgconn)
    connection.pgconn, connection._closed = _make_closed(), True


def _executes(connection: TimeoutConnection, statement: str) -> bool:
    """Execute a statement outside of a transaction; return False if the connection is busy or lost."""
    if connection.closed or connection.pgconn.transaction_status != TransactionStatus.IDLE:
        return False
    try:
        connection.autocommit = True
        with connection.response_timeout(RESET_SECONDS):
            connection.execute(statement.encode(), prepare=False)
        connection.autocommit = False
    except psycopg.Error:
        return False
    return True


@cache
def _make_closed() -> PGconn:
    closed = pq.PGconn.connect_start(b"host=/nonexistent")
    closed.finish()
    return closed
