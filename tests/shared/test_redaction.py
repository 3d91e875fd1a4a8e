"""Redaction of secrets in texts of sandboxes, with bounded work."""

import pytest

from shared import redaction
from shared.redaction import HIDDEN, redact_document, redacting
from shared.users.mcp_config import secrets_of_url

SECRETS = [f"secret-{number}" for number in range(4000)]


def test_texts_beyond_the_search_limit_are_hidden() -> None:
    """A user has a secret for each variable and header of an MCP server, and sends webhooks with a sandbox's key."""
    texts = ["harmless", "has secret-17"] * 25_000
    shown = redact_document({"texts": texts}, redacting(SECRETS))["texts"]
    assert shown[:2] == ["harmless", f"has {HIDDEN}"]
    assert set(shown[25_000:]) == {HIDDEN}


def test_texts_within_the_search_limit_are_kept() -> None:
    texts = ["x" * 10_000] * 500
    assert redact_document(texts, redacting(SECRETS[:100])) == texts


@pytest.mark.parametrize("secret", ["x" * 400, "é" * 200], ids=("long", "long in JSON"))
def test_texts_are_hidden_if_the_secrets_are_too_long(monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    """The secrets that a sandbox's conversations bring may be 160 MB."""
    monkeypatch.setattr(redaction, "MAX_SECRETS_LENGTH", 500)
    monkeypatch.setattr(redaction, "MAX_FORMS_LENGTH", 1000)
    assert redacting(["x" * 400])("harmless") == "harmless"
    assert redacting(["y" * 110, secret])("harmless") == HIDDEN


@pytest.mark.parametrize(
    ("user_info", "secret"),
    [("plain-key", "plain-key"), ("plain-key:", "plain-key"), ("me:plain-key", "plain-key"), ("me:a:key", "a:key")],
)
def test_each_form_of_credentials_in_a_url_is_hidden(user_info: str, secret: str) -> None:
    """Some services take a key as the user, with an empty password."""
    hide = redacting(list(secrets_of_url(f"https://{user_info}@llm.example.com")))
    assert hide(f"unknown: {secret}") == f"unknown: {HIDDEN}"
