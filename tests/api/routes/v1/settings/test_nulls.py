"""Null in a diff of the agent's settings selects a default, and keeps a secret."""

from typing import Any

from fastapi.testclient import TestClient

from shared.db.database import Database
from tests.api.routes.v1.settings.v1 import agent, load, post
from tests.factories import ApiUser


def test_null_keeps_secrets_and_an_empty_text_clears_them(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    keys = {"aws_access_key_id": "akid", "aws_secret_access_key": "secret", "aws_session_token": "session"}
    critic = {"critic_api_key": "critic"}
    post(client, user, agent(llm=keys | {"seed": 1}, verification=critic | {"critic_mode": "all_actions"}))
    post(client, user, agent(llm=dict.fromkeys(keys | {"seed": 1}), verification=dict.fromkeys(critic)))
    expected: dict[str, Any] = {"llm": keys, "verification": critic | {"critic_mode": "all_actions"}}
    assert load(database, user).agent_settings == expected
    post(client, user, agent(verification=None))
    assert load(database, user).agent_settings == {"llm": keys, "verification": critic}
    post(client, user, agent(llm=dict.fromkeys(keys, ""), verification={"critic_api_key": ""}))
    assert load(database, user).agent_settings == {}


def test_null_removes_a_field_of_the_extra_body_named_like_a_secret(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    post(client, user, agent(llm={"litellm_extra_body": {"api_key": "k", "a": 1}}))
    post(client, user, agent(llm={"litellm_extra_body": {"api_key": None}}))
    assert load(database, user).agent_settings == {"llm": {"litellm_extra_body": {"a": 1}}}
