"""Paths that more than one room of the API needs."""

SANDBOX_PATH_PREFIX = "/sandbox"

DOCS_ASSETS = "/docs/parts"
