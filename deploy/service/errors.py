"""Errors before the service starts."""

from shared.reasons import more


class ServiceError(Exception):
    """An error whose text describes the remedy."""

    def __init__(self, text: str, entry: str = "") -> None:
        """Add a reference to an entry of the troubleshooting page, if there is one."""
        super().__init__(f"{text} {more(entry)}" if entry else text)
