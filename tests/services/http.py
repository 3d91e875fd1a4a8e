"""Requests to the tests' own servers, which are never encrypted."""

import ssl
from typing import Any

import httpx

# To load the certificates of the world's authorities takes 45 ms of a processor, each time.
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def request(method: str, url: str, **options: Any) -> httpx.Response:
    """The answer, over a connection of its own; `options` are those of `httpx.request`.

    Raises:
        httpx.TransportError: there was none.
    """
    return httpx.request(method, url, verify=NO_CERTIFICATES, trust_env=False, **options)


def open_client(base_url: str, **options: Any) -> httpx.Client:
    """A client of one server, which keeps its connections; `options` are those of `httpx.Client`."""
    return httpx.Client(base_url=base_url, verify=NO_CERTIFICATES, trust_env=False, **options)


def get(url: str, **options: Any) -> httpx.Response:
    """The same, to read."""
    return request("GET", url, **options)


def post(url: str, **options: Any) -> httpx.Response:
    """The same, to change something."""
    return request("POST", url, **options)
