"""The secrets of a conversation's create request."""

import pytest

from shared.users.secrets import RESERVED_NAMES, CustomSecret
from tests.worker.conversations.agent_inputs import inputs
from worker.conversations.agent_request import UnusableSecret, build_request, check_secrets, secret_values

UNUSABLE_NAMES = [
    "LLM_API_KEY",
    "OH_ALLOW_CORS_ORIGINS_3",
    "OH_WEBHOOKS_0_BASE_URL",
    "vscode",
    "",
    "no-dashes",
    "n" * 257,
    *sorted(RESERVED_NAMES),
]


@pytest.mark.parametrize("name", UNUSABLE_NAMES)
def test_request_with_unusable_secret_names_is_refused(name: str) -> None:
    with pytest.raises(UnusableSecret) as failure:
        build_request(inputs(requested_secrets={"FINE": "v", name: "v"}))
    assert failure.value.reason == "unusable_secret"


@pytest.mark.parametrize("name", UNUSABLE_NAMES)
def test_stored_secrets_with_unusable_names_are_left_out(name: str) -> None:
    body = build_request(inputs(secrets={"FINE": CustomSecret("v", None), name: CustomSecret("v", None)}))
    assert set(body["secrets"]) == {"FINE"}


def test_secrets_beyond_the_limits_are_refused() -> None:
    check_secrets({f"NAME_{number}": "é" * (32 * 1024) for number in range(50)})
    with pytest.raises(UnusableSecret, match="got 51"):
        check_secrets({f"NAME_{number}": "v" for number in range(51)})
    with pytest.raises(UnusableSecret, match="'BIG' is larger") as failure:
        check_secrets({"BIG": "é" * (32 * 1024 + 1)})
    assert "é" not in str(failure.value)


def test_secret_in_the_url_of_a_server_is_one_of_the_secret_values() -> None:
    url = "https://user:url-password@sse.example/?api_token=url-token"
    assert {"url-password", "url-token"} <= set(secret_values(inputs(mcp_config={"sse_servers": [{"url": url}]})))


def test_secret_values_contain_all_secrets_and_the_repr_shows_none() -> None:
    inputs_ = inputs(
        search_api_key="search-key",
        secrets={"A": CustomSecret("stored-value", None)},
        provider_tokens={"github": "gh-token", "bitbucket": "jo:app-password"},
        requested_secrets={"B": "requested-value"},
        mcp_config={
            "sse_servers": [{"url": "http://sse/", "api_key": "sse-key"}],
            "stdio_servers": [{"name": "s", "command": "c", "env": {"K": "stdio-key"}}],
        },
    )
    known = set(secret_values(inputs_))
    assert known == {
        "llm-key",
        "search-key",
        "stored-value",
        "gh-token",
        "jo:app-password",
        "app-password",
        "requested-value",
        "sse-key",
        "stdio-key",
    }
    assert not [secret for secret in known if secret in repr(inputs_)]
