"""The LLM that generates titles, if a user's settings name a profile for it."""

from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from shared.states import Stage
from shared.users import llm_profile_store
from tests.factories import ApiUser
from tests.fakes.agent_server import FakeAgentServer
from tests.worker.scenarios import LLM_KEY, configure, request_start, running, store_settings, task_of
from worker.context import WorkerContext
from worker.conversations.agent_request import TITLE_PROFILE
from worker.conversations.start import start_conversation

TITLE_KEY = "sk-the-key-for-titles-0007"
TITLES = {"model": "openai/titles", "api_key": TITLE_KEY, "base_url": "https://titles.example.org"}


@pytest.fixture
def sandbox_id(context: WorkerContext, user: ApiUser) -> str:
    """A running sandbox of a user whose settings name a profile for titles."""
    configure(context, user)
    with context.database.transaction() as session:
        llm_profile_store.save(session, context.vault, user.id, "titles", TITLES, include_secrets=True, keep_key=False)
    store_settings(context, user, title_llm_profile="titles")
    return running(context, user)


def started(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer, **request: Any
) -> Mapping[str, Any]:
    """The request body of a conversation that was started in the sandbox."""
    task_id = request_start(context, user, sandbox_id, **request)
    start_conversation(context, task_id)
    task = task_of(context, task_id)
    assert (task.stage, task.detail) == (Stage.READY, None)
    return server.get(task.conversation_id).body


def test_profile_is_stored_before_the_conversation(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
) -> None:
    body = started(context, user, sandbox_id, server)
    assert body["title_llm_profile"] == TITLE_PROFILE
    assert server.profiles == {TITLE_PROFILE: TITLES}
    assert server.calls.index("keep_profile") < server.calls.index("create_conversation")


@pytest.mark.parametrize(
    ("base_url", "key"),
    [("https://llm.example.org", {"api_key": LLM_KEY}), ("https://titles.example.org", {})],
    ids=["same server", "another server"],
)
def test_profile_without_a_key_gets_the_one_stored_for_its_server(
    context: WorkerContext,
    user: ApiUser,
    sandbox_id: str,
    server: FakeAgentServer,
    base_url: str,
    key: dict[str, str],
) -> None:
    store_settings(context, user, llm_base_url="https://llm.example.org")
    profile = {"model": "openai/plain", "base_url": base_url}
    with context.database.transaction() as session:
        llm_profile_store.save(session, context.vault, user.id, "plain", profile, include_secrets=True, keep_key=False)
    store_settings(context, user, title_llm_profile="plain")
    started(context, user, sandbox_id, server)
    assert server.profiles == {TITLE_PROFILE: profile | key}


@pytest.mark.parametrize(
    ("profile", "title"), [("titles", "My title"), ("gone", None), (None, None)], ids=["titled", "gone", "none"]
)
def test_profile_is_stored_only_if_needed(
    context: WorkerContext,
    user: ApiUser,
    sandbox_id: str,
    server: FakeAgentServer,
    profile: str | None,
    title: str | None,
) -> None:
    store_settings(context, user, title_llm_profile=profile)
    body = started(context, user, sandbox_id, server, title=title)
    assert "title_llm_profile" not in body
    assert server.profiles == {}


def test_profile_that_the_server_refuses_fails_no_start(
    context: WorkerContext,
    user: ApiUser,
    sandbox_id: str,
    server: FakeAgentServer,
    caplog: pytest.LogCaptureFixture,
) -> None:
    server.refuse = {"keep_profile": httpx.Response(422, json={"detail": f"no such key: {TITLE_KEY}"})}
    started(context, user, sandbox_id, server)
    assert "no such key" in caplog.text
    assert TITLE_KEY not in caplog.text
