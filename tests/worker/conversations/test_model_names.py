"""Settings from before names of models had a max length: they still start conversations."""

import pytest

from shared.models import Conversation
from shared.states import Stage
from tests.factories import ApiUser
from tests.fakes.agent_server import FakeAgentServer
from tests.worker.scenarios import configure, request_start, row, store_settings, task_of
from worker.context import WorkerContext
from worker.conversations.start import start_conversation

NAME = "openai/" + "x" * 600


@pytest.mark.parametrize("is_requested", [True, False])
def test_long_model_name_is_truncated(
    context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer, *, is_requested: bool
) -> None:
    configure(context, user)
    if is_requested:
        task_id = request_start(context, user, sandbox_id, llm_model=NAME)
    else:
        store_settings(context, user, llm_model=NAME)
        task_id = request_start(context, user, sandbox_id)
    start_conversation(context, task_id)
    task = task_of(context, task_id)
    assert task.stage == Stage.READY
    assert row(context, Conversation, task.conversation_id).llm_model == NAME[:500]
    assert server.conversations[task.conversation_id].body["agent_settings"]["llm"]["model"] == NAME
