"""Paths that packages of the API share."""

SANDBOX_PATH_PREFIX = "/sandbox"

DOCS_ASSETS = "/docs/parts"
