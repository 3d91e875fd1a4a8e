"""Errors before the service starts."""


class ServiceError(Exception):
    """An error whose text describes the remedy."""
