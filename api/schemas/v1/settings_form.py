"""Descriptions of the settings for forms, in V1's shape: names, types, defaults and prominence."""

from typing import Any

from shared.users.settings_v1 import (
    ANALYZERS,
    DEFAULT_AGENT,
    DEFAULT_ANALYZER,
    DEFAULT_CONDENSER_SIZE,
    DEFAULT_ITERATIONS,
)

Field = dict[str, Any]
Section = dict[str, Any]

EFFORTS = ("low", "medium", "high", "xhigh", "none")


def _field(key: str, label: str, value_type: str, **more: Any) -> Field:
    choices = [{"value": value, "label": value} for value in more.pop("choices", ())]
    plain: Field = {
        "key": key,
        "label": label,
        "description": None,
        "value_type": value_type,
        "default": None,
        # How early a form shows the field: critical, major or minor.
        "prominence": "minor",
        "depends_on": [],
        "secret": False,
        "choices": choices,
    }
    return plain | more


def _section(key: str, label: str, fields: list[Field], variant: str | None = "openhands") -> Section:
    place = {"section": key, "section_label": label, "variant": variant}
    return {"key": key, "label": label, "variant": variant, "fields": [field | place for field in fields]}


GENERAL = _section(
    "general",
    "General",
    [
        _field("agent", "Agent", "string", default=DEFAULT_AGENT, prominence="major"),
        _field("tool_concurrency_limit", "Concurrent tools", "integer", default=1, prominence="major"),
        _field("mcp_config", "MCP servers", "object", default={}),
    ],
)
LLM = _section(
    "llm",
    "LLM",
    [
        _field("llm.model", "Model", "string", prominence="critical"),
        _field("llm.api_key", "API key", "string", prominence="critical", secret=True),
        _field("llm.base_url", "Base URL", "string", prominence="major"),
        _field("llm.api_version", "API version", "string"),
        _field("llm.aws_access_key_id", "AWS access key id", "string", secret=True),
        _field("llm.aws_secret_access_key", "AWS secret access key", "string", secret=True),
        _field("llm.aws_region_name", "AWS region", "string"),
        _field("llm.timeout", "Timeout, seconds", "integer", default=300),
        _field("llm.num_retries", "Retries", "integer", default=5),
        _field("llm.temperature", "Temperature", "number"),
        _field("llm.top_p", "Top P", "number"),
        _field("llm.max_input_tokens", "Max input tokens", "integer"),
        _field("llm.max_output_tokens", "Max output tokens", "integer"),
        _field("llm.reasoning_effort", "Reasoning effort", "string", default="high", choices=EFFORTS),
        _field("llm.extra_headers", "Extra headers", "object"),
        _field("llm.input_cost_per_token", "Cost of an input token, US dollars", "number"),
        _field("llm.output_cost_per_token", "Cost of an output token, US dollars", "number"),
    ],
)
CONDENSER = _section(
    "condenser",
    "Condenser",
    [
        _field("condenser.enabled", "Condense long conversations", "boolean", default=True, prominence="critical"),
        _field(
            "condenser.max_size",
            "Max events before condensing",
            "integer",
            default=DEFAULT_CONDENSER_SIZE,
            prominence="minor",
            depends_on=["condenser.enabled"],
        ),
    ],
)
CRITIC = _section(
    "verification",
    "Verification",
    [
        _field("verification.critic_enabled", "Critic", "boolean", default=False, prominence="critical"),
        _field(
            "verification.critic_threshold",
            "Min score",
            "number",
            default=0.6,
            depends_on=["verification.critic_enabled"],
        ),
    ],
)
AGENT_SCHEMA: dict[str, Any] = {"model_name": "AgentSettings", "sections": [GENERAL, LLM, CONDENSER, CRITIC]}

CONVERSATION_SCHEMA: dict[str, Any] = {
    "model_name": "ConversationSettings",
    "sections": [
        _section(
            "general",
            "General",
            [_field("max_iterations", "Max iterations", "integer", default=DEFAULT_ITERATIONS, prominence="major")],
            None,
        ),
        _section(
            "verification",
            "Verification",
            [
                _field("confirmation_mode", "Confirm each action", "boolean", default=False, prominence="critical"),
                _field(
                    "security_analyzer",
                    "Security analyzer",
                    "string",
                    default=DEFAULT_ANALYZER,
                    prominence="major",
                    depends_on=["confirmation_mode"],
                    choices=ANALYZERS,
                ),
            ],
            None,
        ),
    ],
}
