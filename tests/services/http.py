"""Requests to the tests' own servers, each on a connection of its own, which are never encrypted."""

import ssl
from typing import Any

import httpx

# To load the certificates of the world's authorities takes 45 ms of a processor, each time.
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def request(method: str, url: str, **options: Any) -> httpx.Response:
    """The answer; `options` are those of `httpx.request`.

    Raises:
        httpx.TransportError: there was none.
    """
    return httpx.request(method, url, verify=NO_CERTIFICATES, trust_env=False, **options)


def get(url: str, **options: Any) -> httpx.Response:
    """The same, to read."""
    return request("GET", url, **options)


def post(url: str, **options: Any) -> httpx.Response:
    """The same, to change something."""
    return request("POST", url, **options)
