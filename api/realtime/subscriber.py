"""The line on which this process hears notices (`shared.changes.notifier`): one for all that wait in it."""

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
# A line that is silent for so long is asked for a sign of life, and given up after as long again.
SILENCE_SECONDS = 1.0
RECONNECT_SECONDS = 1.0


class Listener(Protocol):
    """Who is told."""

    def hear(self, ids: Collection[str]) -> None:
        """These ids were in a notice."""

    def listen(self, *, hears: bool) -> None:
        """From now on notices come, or don't; what came before may have been missed."""


async def subscribe(broker: str, *listeners: Listener) -> None:
    """Pass on what is told, until cancelled; a line that is lost is made anew."""
    lost = False
    while True:
        try:
            async with _client(broker) as client, client.pubsub() as line:
                await _follow(line, listeners)
        except (RedisError, OSError, TimeoutError) as error:
            if not lost:
                log.warning("notices_not_heard", error=type(error).__name__)
            lost = True
        for listener in listeners:
            listener.listen(hears=False)
        await asyncio.sleep(RECONNECT_SECONDS)


def _client(broker: str) -> Redis:
    return Redis.from_url(
        server_url(broker), socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS, retry=None
    )


async def _follow(line: PubSub, listeners: Sequence[Listener]) -> None:
    await line.subscribe(CHANNEL)
    asked = False
    while True:
        message: dict[str, Any] | None = await line.get_message(timeout=SILENCE_SECONDS)
        if message is None:
            if asked:
                raise TimeoutError
            await line.ping()
        else:
            _pass_on(message, listeners)
        asked = message is None


def _pass_on(message: dict[str, Any], listeners: Sequence[Listener]) -> None:
    for listener in listeners:
        if message["type"] == "subscribe":
            listener.listen(hears=True)
        elif message["type"] == "message":
            listener.hear(message["data"].decode(errors="replace").split())
