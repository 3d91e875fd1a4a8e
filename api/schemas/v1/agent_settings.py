"""V1's nested settings in requests: of the agent, and of conversations (wire contract 1.7)."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from api.schemas.v1.fields import BaseUrl, Count, Key, Line, ModelName, Strict, Text
from api.schemas.v1.mcp import HeaderChanges, McpChanges
from shared.json_documents import check_texts

Whole = Annotated[int, Field(ge=0, le=2**31 - 1)]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
# Between 0 and 1: the agent server refuses both.
Part = Annotated[float, Field(gt=0, lt=1)]
Flag = bool | None
MaxSize = Annotated[int, Field(ge=20, le=2**31 - 1)]
Document = Annotated[dict[str, Any], BeforeValidator(check_texts)]
Capabilities = Annotated[dict[Line, bool | Line | None], Field(max_length=50)]


class LlmConfig(Strict):
    """How the agent calls a model. Null selects the default. A secret that is null or masked stays unchanged."""

    model: ModelName | None = None
    api_key: Key | None = None
    base_url: BaseUrl | None = None
    auth_type: Literal["api_key"] | None = None
    api_version: Line | None = None
    aws_access_key_id: Key | None = None
    aws_secret_access_key: Key | None = None
    aws_session_token: Key | None = None
    aws_region_name: Line | None = None
    aws_profile_name: Line | None = None
    aws_role_name: Line | None = None
    aws_session_name: Line | None = None
    aws_bedrock_runtime_endpoint: BaseUrl | None = None
    openrouter_site_url: Text | None = None
    openrouter_app_name: Line | None = None
    num_retries: Whole | None = None
    retry_multiplier: Number | None = None
    retry_min_wait: Whole | None = None
    retry_max_wait: Whole | None = None
    timeout: Whole | None = None
    stream_idle_timeout: Number | None = None
    max_message_chars: Count | None = None
    temperature: Number | None = None
    top_p: Share | None = None
    top_k: Number | None = None
    max_input_tokens: Count | None = None
    max_output_tokens: Count | None = None
    model_canonical_name: Line | None = None
    api_mode: Literal["auto", "chat", "responses"] | None = None
    capability_overrides: Capabilities | None = None
    extra_headers: HeaderChanges | None = None
    input_cost_per_token: Number | None = None
    output_cost_per_token: Number | None = None
    ollama_base_url: BaseUrl | None = None
    stream: Flag = None
    drop_params: Flag = None
    modify_params: Flag = None
    disable_vision: Flag = None
    disable_stop_word: Flag = None
    caching_prompt: Flag = None
    custom_tokenizer: Line | None = None
    native_tool_calling: Flag = None
    force_string_serializer: Flag = None
    inline_image_urls: Flag = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    reasoning_summary: Literal["auto", "concise", "detailed"] | None = None
    enable_encrypted_reasoning: Flag = None
    prompt_cache_retention: Line | None = None
    extended_thinking_budget: Whole | None = None
    seed: Annotated[int, Field(ge=-(2**63), le=2**63 - 1)] | None = None
    litellm_extra_body: Document | None = None


class CondenserDiff(Strict):
    """How a long conversation is condensed; `max_size` is in events."""

    enabled: Flag = None
    max_size: MaxSize | None = None
    condenser_kind: Literal["llm_summarizing", "no_op"] | None = None
    max_tokens: Count | None = None
    keep_first: Whole | None = None
    minimum_progress: Part | None = None
    hard_context_reset_max_retries: Count | None = None
    hard_context_reset_context_scaling: Part | None = None


class VerificationDiff(Strict):
    """How a critic reviews the agent's work. A key that is null or masked stays unchanged."""

    critic_enabled: Flag = None
    critic_mode: Literal["finish_and_message", "all_actions"] | None = None
    enable_iterative_refinement: Flag = None
    critic_threshold: Share | None = None
    max_refinement_iterations: Count | None = None
    critic_server_url: BaseUrl | None = None
    critic_model_name: Line | None = None
    critic_api_key: Key | None = None


class ToolSpec(Strict):
    """A tool of the agent server, and its parameters."""

    name: Annotated[Line, Field(min_length=1)]
    params: Document = Field(default_factory=dict)


class AgentContextDiff(Strict):
    """Additions to the agent's prompts. The service itself decides which skills the agent loads."""

    system_message_suffix: Text | None = None
    user_message_suffix: Text | None = None
    load_memory: Flag = None


class AgentSettingsDiff(Strict):
    """Changes of the agent's settings. Fields that are not sent stay unchanged."""

    # V1 has ACP agents, too (`acp`); Agent Workspace runs OpenHands' own only.
    agent_kind: Literal["openhands"] | None = None
    agent: Line | None = None
    llm: LlmConfig | None = None
    condenser: CondenserDiff | None = None
    verification: VerificationDiff | None = None
    mcp_config: McpChanges | None = None
    agent_context: AgentContextDiff | None = None
    # Null: the agent server's standard tools.
    tools: Annotated[list[ToolSpec], Field(max_length=100)] | None = None
    tool_concurrency_limit: Count | None = None
    # Former switches of the agent server, which refuses them now: `tools` replaces them. Stored, shown, not passed on.
    enable_sub_agents: Flag = None
    enable_switch_llm_tool: Flag = None


class ConversationSettingsDiff(Strict):
    """Changes of the settings of conversations."""

    max_iterations: Count | None = None
    confirmation_mode: Flag = None
    security_analyzer: Literal["llm", "none"] | None = None
