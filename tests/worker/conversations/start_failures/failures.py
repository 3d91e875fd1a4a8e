"""An agent server that is away, and what a failed start may not show."""

import httpx
import pytest

from tests.worker.scenes import (
    SECRETS,
)


def assert_no_secret(text: str) -> None:
    assert [secret for secret in SECRETS if secret in text] == []


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """Every record with all it carries, before it is formatted."""
    return "\n".join(repr(vars(record)) for record in caplog.records)


def unreachable(_method: str) -> None:
    raise httpx.ConnectError("refused")
