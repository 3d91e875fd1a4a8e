"""Patches of kombu 5.7.0 for lost broker connections, long queues, and items of a queue that are not messages.

kombu restores and acknowledges the messages of a connection even after the connection is lost. Both then fail on
missing objects, and that ends the worker (docs/decisions/0003). Dropping these messages loses nothing: a message is
redelivered after its visibility timeout and finds its row completed, or the sweep enqueues the row before that.

Any program with access to the broker can put anything into a queue. kombu does not catch the errors of its parsers, and
they end the worker, too. So an item that kombu cannot read is dropped first.

Nothing reads the queue of a node that is down, and kombu does not limit a queue on Redis.
"""

from functools import partial
from typing import Any

import structlog
from kombu import Connection
from kombu.transport import virtual
from kombu.transport.redis import Channel, PrefixedStrictRedis, QoS, Transport

from shared.queue.envelopes import is_envelope

log = structlog.get_logger()

# The interval between two attempts to connect. kombu's own interval grows to 30 s.
RETRY_SECONDS = 1.0
# The maximum number of messages in a queue: about 20 MB. Older ones are dropped, and the sweep enqueues their rows.
MAX_QUEUED = 20_000


class FastRetryConnection(Connection):
    """A connection that is restored soon after its broker is back."""

    def ensure_connection(self, *arguments: Any, **options: Any) -> Any:
        """Retry at a constant interval until there is a connection."""
        intervals = {"interval_start": RETRY_SECONDS, "interval_step": 0, "interval_max": RETRY_SECONDS}
        return super().ensure_connection(*arguments, **(intervals | options))


class LossTolerantQoS(QoS):
    """Acknowledges and restores messages only while their connection exists."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message, or drop it if its connection is lost."""
        if self._is_disconnected():
            virtual.QoS.ack(self, delivery_tag)
        else:
            super().ack(delivery_tag)

    def restore_unacked(self, client: Any = None) -> None:
        """Restore unacknowledged messages, or leave them to their visibility timeout."""
        if not self._is_disconnected():
            super().restore_unacked(client)
        elif self._delivered is not None:
            self._delivered.clear()

    def _is_disconnected(self) -> bool:
        transport = self.channel.connection
        return transport is None or transport.client is None


def install_channels() -> None:
    """Make every connection of this process open channels of `CachedClientChannel`."""
    Transport.Channel = CachedClientChannel


class NotAnEnvelope(Exception):
    """Raised when an item is read from a queue, and kombu cannot read it."""


class CheckingClient(PrefixedStrictRedis):
    """Reads from queues only what kombu can read, and keeps at most `MAX_QUEUED` messages in each."""

    def lpush(self, name: Any, *values: Any) -> Any:
        """Append messages to a queue, and drop the oldest ones that exceed the maximum."""
        length: Any = super().lpush(name, *values)
        if length > MAX_QUEUED:
            self.rpop(name, length - MAX_QUEUED)
        return length

    def parse_response(self, connection: Any, command_name: str, **options: Any) -> Any:
        """Return the response to a command.

        Raises:
            NotAnEnvelope: it is an item of a queue, and kombu cannot read it. The item is no longer in the queue.
        """
        response: Any = super().parse_response(connection, command_name, **options)
        if command_name == "BRPOP" and response and not is_envelope(response[1]):
            raise NotAnEnvelope(response[0].decode())
        return response


class CachedClientChannel(Channel):
    """Caches its client: kombu 5.7.0 creates one for each command, though it has no state but its connections."""

    QoS = LossTolerantQoS

    pool: Any
    _cached_client: Any = None
    _queue_cycle: Any

    def _get_client(self) -> Any:
        return partial(CheckingClient, global_keyprefix=self.global_keyprefix)

    def _brpop_read(self, **options: Any) -> bool:
        try:
            return bool(super()._brpop_read(**options))  # type: ignore[misc]
        except NotAnEnvelope as error:
            queue = str(error).rsplit(self.sep, 1)[0]
            self._queue_cycle.rotate(queue)  # such items must not delay those of the other queues
            log.warning("message_dropped", queue=queue, why="not a message")
            return True

    def _create_client(self, asynchronous: bool = False) -> Any:
        create: Any = super()._create_client  # type: ignore[misc]
        if asynchronous:
            return create(asynchronous=True)
        if self._cached_client is None or self._cached_client.connection_pool is not self.pool:
            self._cached_client = create()
        return self._cached_client
