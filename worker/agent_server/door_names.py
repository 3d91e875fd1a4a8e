"""Connections to doors by their names. A resolver obeys no timeout, so each look-up has a thread of its own."""

import socket
import time
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Any

import httpcore

from shared.agent_server.limits import CONNECT_SECONDS
from worker.lease_renewer import SharedCalls


class NameBackend(httpcore.SyncBackend):
    """httpcore's backend. A connection has one timeout for the look-up of its host and all of the host's addresses."""

    def __init__(self) -> None:
        self._lookups = SharedCalls()
        # By name: the addresses that the last look-up found.
        self._found: dict[str, list[str]] = {}

    def connect_tcp(
        self, host: str, port: int, timeout: float | None = None, *rest: Any, **options: Any
    ) -> httpcore.NetworkStream:
        """Connect to the first of the host's addresses that accepts, within `CONNECT_SECONDS` at most.

        Raises:
            httpcore.ConnectTimeout: the resolver or the host does not respond in time.
            httpcore.ConnectError: the host has no address, or refuses.
        """
        ends_at = time.monotonic() + min(CONNECT_SECONDS if timeout is None else timeout, CONNECT_SECONDS)
        *others, last = addresses = self._look_up(host, ends_at)
        for address in others:
            share = _remaining_seconds(ends_at) / len(addresses)
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return super().connect_tcp(address, port, share, *rest, **options)
        return super().connect_tcp(last, port, _remaining_seconds(ends_at), *rest, **options)

    def _look_up(self, host: str, ends_at: float) -> list[str]:
        with suppress(ValueError):
            return [str(ip_address(host))]
        try:
            self._lookups.begin(host, partial(self._resolve, host)).result(_remaining_seconds(ends_at))
        except TimeoutError:
            raise httpcore.ConnectTimeout(f"no response to the look-up of {host}") from None
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from None
        return self._found[host]

    def _resolve(self, host: str) -> None:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
        self._found[host] = list(dict.fromkeys(str(address[0]) for *_, address in found))


def _remaining_seconds(ends_at: float) -> float:
    if (left := ends_at - time.monotonic()) <= 0:
        raise httpcore.ConnectTimeout("timed out")
    return left
