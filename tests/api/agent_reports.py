"""Webhook reports of agent server 1.58.2, with the fields that tests need."""

import itertools
from datetime import UTC, datetime, timedelta
from typing import Any

from shared.ids import new_id

# The headers of an agent server.
JSON = {"Content-Type": "application/json"}
FIRST = datetime(2026, 1, 1, tzinfo=UTC)
Seconds = float


def event_report(kind: str = "MessageEvent", after: Seconds = 0, **fields: Any) -> dict[str, Any]:
    # Agent servers send times without a zone.
    at = (FIRST + timedelta(seconds=after)).replace(tzinfo=None).isoformat()
    return {"id": new_id(), "kind": kind, "timestamp": at, "source": "agent", **fields}


def update_report(key: str, value: Any, after: Seconds = 0) -> dict[str, Any]:
    return event_report("ConversationStateUpdateEvent", after, key=key, value=value)


def usage_report(cost: float, prompt: int, reasoning: int = 0, **fields: Any) -> dict[str, Any]:
    tokens = {"prompt_tokens": prompt, "completion_tokens": 1, "reasoning_tokens": reasoning, "context_window": 9}
    return {"model_name": "m", "accumulated_cost": cost, "accumulated_token_usage": tokens, **fields}


def stats_report(**usages: Any) -> dict[str, Any]:
    return {"usage_to_metrics": usages}


def conversation_report(conversation_id: str, after: Seconds = 0, **fields: Any) -> dict[str, Any]:
    dashed = "-".join(conversation_id[start:end] for start, end in itertools.pairwise((0, 8, 12, 16, 20, 32)))
    at = (FIRST + timedelta(seconds=after)).isoformat().replace("+00:00", "Z")
    return {
        "id": dashed,
        "agent": {"kind": "Agent", "llm": {"model": "openai/scripted"}},
        "workspace": {"kind": "LocalWorkspace", "working_dir": "/workspace/project"},
        "created_at": "2020-01-01T00:00:00Z",
        "updated_at": at,
        "title": None,
        "execution_status": "idle",
        "tags": {},
        "stats": stats_report(),
        **fields,
    }
