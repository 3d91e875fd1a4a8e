"""The subscription of a process to change notifications (`shared.changes.notifier`), shared by all its waiters."""

import asyncio
from collections.abc import Collection, Sequence
from typing import Any, Protocol

import structlog
from redis import RedisError
from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from shared.changes.notifier import CHANNEL, server_url

log = structlog.get_logger()

TIMEOUT_SECONDS = 2.0
# A subscription that is silent for this time is pinged, and reconnected after the same time without a reply.
SILENCE_SECONDS = 1.0
RECONNECT_SECONDS = 1.0


class Listener(Protocol):
    """A receiver of change notifications."""

    def receive(self, ids: Collection[str]) -> None:
        """Handle a notification about these ids."""

    def set_connected(self, *, is_connected: bool) -> None:
        """Handle a new or a lost subscription; earlier notifications may have been missed."""


async def subscribe(broker: str, *listeners: Listener) -> None:
    """Pass notifications on to the listeners until cancelled; reconnect a lost subscription."""
    outages = _OutageLog()
    while True:
        try:
            async with _client(broker) as client, client.pubsub() as subscription:
                await _receive(subscription, (outages, *listeners))
        except (RedisError, OSError, TimeoutError) as error:
            outages.report(error)
        for listener in listeners:
            listener.set_connected(is_connected=False)
        await asyncio.sleep(RECONNECT_SECONDS)


class _OutageLog:
    """Logs each outage once. A connection alone does not end an outage: a stalled broker accepts connections."""

    def __init__(self) -> None:
        self._is_out = False

    def receive(self, ids: Collection[str]) -> None:
        """Ignore a notification."""

    def set_connected(self, *, is_connected: bool) -> None:
        self._is_out = not is_connected

    def report(self, error: Exception) -> None:
        """Log the error, unless it is of an outage that was logged."""
        if not self._is_out:
            log.warning("subscription_lost", error=type(error).__name__)
        self._is_out = True


def _client(broker: str) -> Redis:
    return Redis.from_url(
        server_url(broker), socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS, retry=None
    )


async def _receive(subscription: PubSub, listeners: Sequence[Listener]) -> None:
    await subscription.subscribe(CHANNEL)
    pinged = False
    while True:
        message: dict[str, Any] | None = await subscription.get_message(timeout=SILENCE_SECONDS)
        if message is None:
            if pinged:
                raise TimeoutError
            await subscription.ping()
        else:
            _pass_on(message, listeners)
        pinged = message is None


def _pass_on(message: dict[str, Any], listeners: Sequence[Listener]) -> None:
    for listener in listeners:
        if message["type"] == "subscribe":
            listener.set_connected(is_connected=True)
        elif message["type"] == "message":
            listener.receive(message["data"].decode(errors="replace").split())
