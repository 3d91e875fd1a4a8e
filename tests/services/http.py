"""Unencrypted requests to the tests' servers."""

import ssl
from typing import Any

import httpx

# An empty context, because loading the usual certificate authorities takes 45 ms of CPU time, each time.
NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def request(method: str, url: str, **options: Any) -> httpx.Response:
    """Send a request on a new connection; `options` are those of `httpx.request`.

    Raises:
        httpx.TransportError: there was no response.
    """
    return httpx.request(method, url, verify=NO_CERTIFICATES, trust_env=False, **options)


def open_client(base_url: str, **options: Any) -> httpx.Client:
    """A client of one server that keeps its connections; `options` are those of `httpx.Client`."""
    return httpx.Client(base_url=base_url, verify=NO_CERTIFICATES, trust_env=False, **options)


def get(url: str, **options: Any) -> httpx.Response:
    """Send a GET on a new connection."""
    return request("GET", url, **options)


def post(url: str, **options: Any) -> httpx.Response:
    """Send a POST on a new connection."""
    return request("POST", url, **options)
