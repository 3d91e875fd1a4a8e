"""Paths that packages of the API share, and the query of a request."""

from starlette.requests import HTTPConnection

SANDBOX_PATH_PREFIX = "/sandbox"

DOCS_ASSETS = "/docs/parts"


def query_of(request: HTTPConnection) -> str:
    """Return the query as it was sent, with a character for each byte.

    Starlette's `Request.url` raises a UnicodeDecodeError if some of the bytes are not UTF-8.
    """
    query: bytes = request.scope["query_string"]
    return query.decode("latin-1")
