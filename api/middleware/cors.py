"""CORS: only pages of the configured origins may send requests, with cookies or keys."""

from collections.abc import Collection

from fastapi import FastAPI
from fastapi.middleware.cors import CORSMiddleware

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
# Response headers that pages may read, besides the safelisted ones of the Fetch standard.
EXPOSED = (
    "Content-Disposition",
    "Deprecation",
    "ETag",
    "Link",
    "Operation-Settled",
    "Preference-Applied",
    "Retry-After",
    "Wish-Settled",
    "X-Request-ID",
)


def allow_origins(app: FastAPI, origins: Collection[str]) -> None:
    """Respond to preflight requests before authentication, because they have no key, and add headers to responses."""
    app.add_middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=METHODS,
        allow_headers=["*"],
        allow_credentials=True,
        expose_headers=EXPOSED,
    )
