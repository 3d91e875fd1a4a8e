"""A user's settings in clear."""

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from shared.users.llm_profiles import LlmProfiles
from shared.users.mcp_config import McpConfig


class Provider(StrEnum):
    """The git providers (wire contract 1.9)."""

    GITHUB = "github"
    GITLAB = "gitlab"
    BITBUCKET = "bitbucket"
    BITBUCKET_DATA_CENTER = "bitbucket_data_center"
    FORGEJO = "forgejo"
    AZURE_DEVOPS = "azure_devops"
    ENTERPRISE_SSO = "enterprise_sso"


# The default hosts of providers that have a public host.
DEFAULT_HOSTS = {
    "azure_devops": "dev.azure.com",
    "bitbucket": "bitbucket.org",
    "forgejo": "codeberg.org",
    "github": "github.com",
    "gitlab": "gitlab.com",
}


class OpenSettings(BaseModel):
    """The settings that are not secret, with their defaults (wire contract, section 5).

    Bounds are checked on input, not in this model: stored settings can always be read.
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    language: str | None = None
    agent: str | None = None
    max_iterations: int | None = None
    security_analyzer: str | None = None
    confirmation_mode: bool | None = None
    llm_model: str | None = None
    # It may have a password in it.
    llm_base_url: str | None = Field(default=None, repr=False)
    remote_runtime_resource_factor: int | None = None
    enable_default_condenser: bool = True
    # The number of events.
    condenser_max_size: int | None = None
    enable_sound_notifications: bool = False
    enable_proactive_conversation_starters: bool = True
    enable_solvability_analysis: bool = True
    user_consents_to_analytics: bool | None = None
    sandbox_base_container_image: str | None = None
    sandbox_runtime_container_image: str | None = None
    # In US dollars.
    max_budget_per_task: float | None = None
    email: str | None = None
    email_verified: bool | None = None
    git_user_name: str | None = None
    git_user_email: str | None = None


class V1Settings(OpenSettings):
    """The settings of V0, and those that only V1 has."""

    # These three are stored and returned, and have no other effect in this service.
    user_version: int | None = None
    v1_enabled: bool = True
    registered_marketplaces: list[dict[str, Any]] = Field(default_factory=list)
    # The names of a project's skills that are disabled in all conversations.
    disabled_skills: list[str] | None = None
    # Clones have their full history.
    git_full_clone: bool = False
    # One of `shared.conversations.start.ORDERS`; any other name means no grouping.
    sandbox_grouping_strategy: str = "NO_GROUPING"
    # The spec of new sandboxes where a request names none; it is ignored if no such spec exists.
    default_sandbox_spec_id: str | None = None
    # The name of the LLM profile that generates titles; an unknown name means none.
    title_llm_profile: str | None = None


class StoredSettings(V1Settings):
    """Every setting in clear, for the worker; a repr or a log line of it shows no secret."""

    llm_api_key: str | None = Field(default=None, repr=False)
    search_api_key: str | None = Field(default=None, repr=False)
    sandbox_api_key: str | None = Field(default=None, repr=False)
    # {sse_servers, stdio_servers, shttp_servers}, see `shared.users.mcp_config`.
    mcp_config: McpConfig | None = Field(default=None, repr=False)
    # The values of V1's nested shape without a field above: see `shared.users.settings_v1`.
    agent_settings: dict[str, Any] = Field(default_factory=dict, repr=False)
    llm_profiles: LlmProfiles = Field(default_factory=LlmProfiles, repr=False)
