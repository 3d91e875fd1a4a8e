"""What a lost broker connection leaves behind, let go of quietly.

kombu 5.7.0 answers for every message that a connection handed out, even after the connection is gone. Putting one
back, or acknowledging one, then fails on what is no longer there, and that ends the worker (docs/decisions/0003).
Nothing is lost by letting go: the message comes back by its visibility timeout and finds its wish carried out, or the
sweep sends another before that.
"""

from typing import Any

from kombu import Connection
from kombu.transport import virtual
from kombu.transport.redis import Channel, QoS, Transport

# Between two tries to reach a broker that is away. kombu's own pause grows to 30 s, however soon the broker is back.
RETRY_SECONDS = 1.0


class QuickConnection(Connection):
    """A connection that is made again soon after its broker is back."""

    def ensure_connection(self, *arguments: Any, **options: Any) -> Any:
        """Try until there is a connection, without ever longer pauses."""
        pauses = {"interval_start": RETRY_SECONDS, "interval_step": 0, "interval_max": RETRY_SECONDS}
        return super().ensure_connection(*arguments, **(pauses | options))


class PatientQoS(QoS):
    """Answers for messages only while there is a connection to answer by."""

    def ack(self, delivery_tag: str) -> None:
        """Acknowledge a message, or forget it."""
        if self._is_cut_off():
            virtual.QoS.ack(self, delivery_tag)
        else:
            super().ack(delivery_tag)

    def restore_unacked(self, client: Any = None) -> None:
        """Put unfinished messages back, or leave them to their timeout."""
        if not self._is_cut_off():
            super().restore_unacked(client)
        elif self._delivered is not None:
            self._delivered.clear()

    def _is_cut_off(self) -> bool:
        transport = self.channel.connection
        return transport is None or transport.client is None


def install_channels() -> None:
    """Have every connection of this process open channels of this kind."""
    Transport.Channel = KeptClientChannel


class KeptClientChannel(Channel):
    """Keeps its client: kombu 5.7.0 makes a new one for each command, though it has no state but its connections."""

    QoS = PatientQoS

    pool: Any
    _kept_client: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:
        create: Any = super()._create_client  # type: ignore[misc]
        if asynchronous:
            return create(asynchronous=True)
        if self._kept_client is None or self._kept_client.connection_pool is not self.pool:
            self._kept_client = create()
        return self._kept_client
