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


class OpenSettings(BaseModel):
    """The settings that are no secrets, with their defaults (wire contract, section 5).

    Bounds are checked where settings come in, not here: what is stored can always be read.
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    language: str | None = None
    agent: str | None = None
    max_iterations: int | None = None
    security_analyzer: str | None = None
    confirmation_mode: bool | None = None
    llm_model: str | None = None
    llm_base_url: str | None = None
    remote_runtime_resource_factor: int | None = None
    enable_default_condenser: bool = True
    # In events.
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
    """And those that V1 has beyond V0."""

    # These three are kept and given back, and change nothing here.
    user_version: int | None = None
    v1_enabled: bool = True
    registered_marketplaces: list[dict[str, Any]] = Field(default_factory=list)
    # The names of a project's skills that no conversation is to have.
    disabled_skills: list[str] | None = None
    # Clones have their whole history.
    git_full_clone: bool = False
    # One of `shared.conversations.sandbox_grouping.ORDERS`, or none.
    sandbox_grouping_strategy: str = "NO_GROUPING"
    # What is made when no spec is asked for, while there is such a spec.
    default_sandbox_spec_id: str | None = None
    # The name of the profile that makes titles; one that is not there stands for none.
    title_llm_profile: str | None = None


class StoredSettings(V1Settings):
    """Every setting in clear, for the worker; a repr or a log line of it shows no secret."""

    llm_api_key: str | None = Field(default=None, repr=False)
    search_api_key: str | None = Field(default=None, repr=False)
    sandbox_api_key: str | None = Field(default=None, repr=False)
    # {sse_servers, stdio_servers, shttp_servers}, see `shared.users.mcp_config`.
    mcp_config: McpConfig | None = Field(default=None, repr=False)
    # What V1's nested shape has beyond the fields above: see `shared.users.settings_v1`.
    agent_settings: dict[str, Any] = Field(default_factory=dict, repr=False)
    llm_profiles: LlmProfiles = Field(default_factory=LlmProfiles, repr=False)
