"""Errors of the demo."""


class DemoError(Exception):
    """An error that ends the demo. Its text names the cause and, if possible, the remedy."""
