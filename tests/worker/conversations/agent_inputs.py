"""The inputs of an agent's request."""

from typing import Any

from shared.users.settings import StoredSettings
from worker.conversations.agent_request import AgentInputs

CONVERSATION = "01234567-89ab-cdef-0123-456789abcdef"
MESSAGE = {"role": "user", "content": [{"type": "text", "text": "fix the bug"}]}


def inputs(**change: Any) -> AgentInputs:
    """Inputs of a start; each name is that of a setting or of a field of `AgentInputs`."""
    values = {"llm_model": "openai/gpt", "llm_api_key": "llm-key"} | change
    stored = {name: values.pop(name) for name in StoredSettings.model_fields if name in values}
    return AgentInputs(CONVERSATION, "/workspace/project/app", StoredSettings(**stored), **values)
