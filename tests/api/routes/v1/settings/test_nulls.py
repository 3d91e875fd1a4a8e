"""Null in a diff of the agent's settings selects a default, and keeps a secret."""

from typing import Any

from fastapi.testclient import TestClient

from shared.db.database import Database
from tests.api.routes.v1.settings.v1 import agent, load, post, read
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


def test_empty_values_in_the_extra_body_are_stored(client: TestClient, database: Database, user: ApiUser) -> None:
    body = {"a": "", "b": {}, "c": [], "d": {"e": "", "f": {}, "g": [None, "", {}]}, "h": False, "i": 0}
    post(client, user, agent(llm={"litellm_extra_body": body}))
    assert read(client, user)["agent_settings"]["llm"]["litellm_extra_body"] == body
    post(client, user, agent(llm={"litellm_extra_body": {"a": "x", "d": {"e": None}}}))
    expected = body | {"a": "x", "d": {"f": {}, "g": [None, "", {}]}}
    assert load(database, user).agent_settings == {"llm": {"litellm_extra_body": expected}}
    post(client, user, agent(llm={"litellm_extra_body": None}))
    assert load(database, user).agent_settings == {}


def test_null_in_place_of_a_section_selects_all_its_defaults_and_keeps_its_secrets(
    client: TestClient, database: Database, user: ApiUser
) -> None:
    model = {"model": "m", "base_url": "https://llm.example.com", "temperature": 1}
    secrets = {"aws_session_token": "session", "extra_headers": {"X-Key": "header"}}
    condenser = {"enabled": False, "max_size": 80, "keep_first": 4}
    post(client, user, agent(llm=model | secrets | {"api_key": "key"}, condenser=condenser))
    post(client, user, agent(llm=None, condenser=None))
    shown = read(client, user)
    assert shown["agent_settings"]["condenser"] == {"enabled": True, "max_size": 240}
    assert (shown["llm_model"], shown["llm_base_url"], shown["llm_api_key_set"]) == (None, None, True)
    assert load(database, user).agent_settings == {"llm": secrets}
