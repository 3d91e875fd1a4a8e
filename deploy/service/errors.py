"""What goes wrong before the service starts."""


class ServiceError(Exception):
    """Its text says what to do about it."""
