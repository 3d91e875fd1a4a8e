"""An unreachable agent server, and the secrets that a failed start must not show."""

import httpx
import pytest

from tests.worker.scenarios import (
    SECRETS,
)


def assert_no_secret(text: str) -> None:
    assert [secret for secret in SECRETS if secret in text] == []


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """Every log record with all its attributes, before it is formatted."""
    return "\n".join(repr(vars(record)) for record in caplog.records)


def unreachable(_method: str) -> None:
    raise httpx.ConnectError("refused")
