"""Why a demonstration stops, in words for the person at the terminal."""


class DemoError(Exception):
    """The demonstration can't go on; the text says why and, where it can, what to do."""
