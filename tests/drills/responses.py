"""The service's responses during faults: it may be unavailable, but it must not fail otherwise."""

import httpx


def is_unavailable(response: httpx.Response) -> bool:
    """Whether the response is a 503 that says when to retry."""
    return response.status_code == 503 and "Retry-After" in response.headers


def assert_no_failure(response: httpx.Response) -> None:
    """Assert that the response is not a 5xx, except one of an unavailable service."""
    sent = response.request
    described = (
        f"{sent.method} {sent.url.path}: {response.status_code}, Retry-After {response.headers.get('Retry-After')}"
    )
    assert response.status_code < 500 or is_unavailable(response), described
