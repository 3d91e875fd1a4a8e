"""kombu's Redis channel, as this service needs it."""

from typing import Any

from kombu.transport.redis import Channel, Transport

from shared.lost_connections import PatientQoS


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
