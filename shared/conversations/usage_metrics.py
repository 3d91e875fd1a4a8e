"""The cost of a conversation: one snapshot combined from many usages, which never decreases."""

from typing import Any

SUMMED = (
    "prompt_tokens",
    "completion_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "reasoning_tokens",
)
# The usage id of the agent's own model; others (condenser, profiles, …) cost money too.
AGENT = "agent"
# A larger number is invalid and counts as 0: some integers do not fit into a float.
MAX_NUMBER = 1e15


def combine(stats: Any) -> dict[str, Any] | None:
    """V1's MetricsSnapshot over all usage ids of an agent server's `stats`.

    Returns:
        None if nothing was used yet, or the document has an unknown shape.
    """
    by_usage = stats.get("usage_to_metrics") if isinstance(stats, dict) else None
    usages = [usage for usage in _sorted(by_usage) if isinstance(usage, dict)]
    if not usages:
        return None
    first = usages[0]
    return {
        "model_name": _text(first.get("model_name")) or "default",
        "accumulated_cost": sum(_number(usage.get("accumulated_cost")) for usage in usages),
        "max_budget_per_task": None,
        "accumulated_token_usage": _combine_tokens([_tokens(usage) for usage in usages]),
    }


def latest(known: dict[str, Any] | None, reported: dict[str, Any] | None) -> dict[str, Any] | None:
    """The later of two snapshots, which may arrive in any order: the one with the higher cost."""
    if known is None or reported is None:
        return reported or known
    return reported if _size(reported) >= _size(known) else known


def _sorted(by_usage: Any) -> list[Any]:
    """The usages, the agent's first: the snapshot takes its model names from the first usage."""
    if not isinstance(by_usage, dict):
        return []
    return [by_usage[name] for name in sorted(by_usage, key=lambda name: (name != AGENT, str(name)))]


def _combine_tokens(usages: list[dict[str, Any]]) -> dict[str, Any]:
    first = usages[0]
    return {
        "model": _text(first.get("model")),
        **{name: sum(_count(usage.get(name)) for usage in usages) for name in SUMMED},
        "context_window": max(_count(usage.get("context_window")) for usage in usages),
        "per_turn_token": _count(first.get("per_turn_token")),
        "response_id": _text(first.get("response_id")),
    }


def _tokens(usage: dict[str, Any]) -> dict[str, Any]:
    tokens = usage.get("accumulated_token_usage")
    return tokens if isinstance(tokens, dict) else {}


def _size(snapshot: dict[str, Any]) -> tuple[float, int]:
    tokens = snapshot.get("accumulated_token_usage") or {}
    return snapshot.get("accumulated_cost", 0.0), sum(tokens.get(name, 0) for name in SUMMED)


def _number(value: Any) -> float:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if known and 0 <= value <= MAX_NUMBER else 0.0


def _count(value: Any) -> int:
    return int(_number(value))


def _text(value: Any) -> str:
    return value.encode(errors="replace").decode()[:500] if isinstance(value, str) else ""
