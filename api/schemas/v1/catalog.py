"""Models, providers and the configuration of web clients on the wire (wire contract 1.12)."""

from typing import Literal

from pydantic import BaseModel, Field

from api.schemas.v1.fields import Time
from shared.users.settings import Provider


class LlmModel(BaseModel):
    """A model that forms may suggest."""

    provider: str | None = None
    name: str
    verified: bool = False
    hidden: bool = False
    canonical: str | None = None


class LlmProvider(BaseModel):
    """A provider of models."""

    name: str
    verified: bool = False


class FeatureFlags(BaseModel):
    """Features that a web client shows or hides."""

    enable_billing: bool = False
    hide_llm_settings: bool = False
    enable_jira: bool = False
    enable_jira_dc: bool = False
    enable_linear: bool = False
    hide_users_page: bool = True
    hide_billing_page: bool = True
    hide_integrations_page: bool = False
    hide_personal_workspaces: bool = False
    allow_user_llm_configuration: bool = True
    enable_acp: bool = False
    deployment_mode: Literal["cloud", "self_hosted"] | None = "self_hosted"
    enable_onboarding: bool = False
    enable_automations: bool = False


class AcpModel(BaseModel):
    """A model of an ACP agent."""

    id: str
    label: str


class AcpProvider(BaseModel):
    """An ACP agent. Agent Workspace offers none."""

    key: str
    display_name: str
    default_command: list[str]
    default_model: str | None = None
    available_models: list[AcpModel] = Field(default_factory=list)
    api_key_env_var: str | None = None
    base_url_env_var: str | None = None


class WebClientConfig(BaseModel):
    """The configuration that a web client needs before a user signs in. It reveals nothing about this installation."""

    kind: Literal["WebClientConfig"] = "WebClientConfig"
    app_mode: Literal["oss", "saas"] = "oss"
    posthog_client_key: str | None = None
    feature_flags: FeatureFlags = Field(default_factory=FeatureFlags)
    providers_configured: list[Provider] = Field(default_factory=list)
    maintenance_start_time: Time | None = None
    auth_url: str | None = None
    recaptcha_site_key: str | None = None
    faulty_models: list[str] = Field(default_factory=list)
    error_message: str | None = None
    updated_at: Time
    github_app_slug: str | None = None
    gitlab_enabled: bool = False
    provider_default_hosts: dict[str, str]
    slack_enabled: bool = False
    email_enabled: bool = False
    acp_providers: list[AcpProvider] = Field(default_factory=list)
    jira_dc_oauth_host: str | None = None
    jira_dc_service_account_managed: bool = False
    jira_dc_service_account_email: str | None = None
    jira_dc_service_account_config_error: str | None = None


class SkillInfo(BaseModel):
    """A skill that all conversations have."""

    name: str
    type: str
    source: str
    triggers: list[str] | None = None


class MarketplacePlugin(BaseModel):
    """A plugin of a marketplace."""

    name: str
    description: str | None = None
    source: str
    marketplace: str


class MarketplacePreview(BaseModel):
    """The skills and plugins that conversations would get from marketplaces, and why some can't be listed."""

    skills: list[SkillInfo] = Field(default_factory=list)
    plugins: list[MarketplacePlugin] = Field(default_factory=list)
    marketplace_skills: dict[str, list[str]] = Field(default_factory=dict)
    errors: list[str]
