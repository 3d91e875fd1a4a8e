"""Operations on the model servers that sandboxes may reach."""

from shared.cli.local.installation import Installation
from shared.models import ModelServer
from shared.nodes import model_servers


class ModelOperations(Installation):
    """Operations on the model servers of an installation."""

    def list_configured(self) -> list[str]:
        """The servers of AW_MODEL_SERVERS.

        Raises:
            Invalid: one of them is malformed.
        """
        return model_servers.read_setting(self._settings.model_servers)

    def list_allowed(self) -> list[ModelServer]:
        """The servers that `allow` added."""
        with self.reading() as session:
            return model_servers.list_allowed(session)

    def allow(self, address: str) -> str:
        """Allow a server, and return its address as stored.

        Raises:
            Invalid: the address is malformed.
        """
        with self.writing() as session:
            return model_servers.allow(session, address)

    def refuse(self, address: str) -> str:
        """Refuse a server, and return its address as stored.

        Raises:
            Invalid: the address is malformed.
            NotFound: it was not allowed by `allow`.
        """
        with self.writing() as session:
            return model_servers.refuse(session, address)
