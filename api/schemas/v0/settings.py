"""V0's settings, secrets and git providers on the wire (wire contract, section 5)."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, SecretStr

from api.schemas.v1.fields import BaseUrl, Count, Host, Key, Line, ModelName, Strict, Text, Value, check_names
from api.schemas.v1.mcp import McpAdditions, McpConfigInfo, McpEitherShape, McpPatch
from api.schemas.v1.secrets import CustomSecretInfo
from shared.users.mcp_changes import Additions, Patch
from shared.users.mcp_config import MASK, mask_servers, mask_url
from shared.users.secrets import MAX_SECRETS, check_free
from shared.users.settings import OpenSettings, Provider, StoredSettings

# V0 had two more analyzers. With any but `llm`, each action needs a confirmation.
Analyzer = Literal["", "llm", "none", "invariant", "grayswan"]


def _check_providers(tokens: Any) -> Any:
    known = tuple(Provider)
    unknown = next((name for name in tokens if name not in known), None) if isinstance(tokens, dict) else None
    if unknown is not None:
        raise ValueError(f"unknown provider {str(unknown)[:40]!a}: there are {', '.join(known)}")
    return tokens


def _token_entry(entry: Any) -> Any:
    return {"token": entry} if entry is None or isinstance(entry, str) else entry


def _secret_entry(entry: Any) -> Any:
    return {"secret": entry} if entry is None or isinstance(entry, str) else entry


class ProviderTokenEntry(Strict):
    """A git provider's token. `user_id` is the user's id at the provider; `host` is for self-hosted providers."""

    token: Key | None = None
    user_id: Annotated[Line, Field(max_length=256)] | None = None
    host: Host | None = None


class SecretEntry(Strict):
    """A custom secret."""

    secret: Value | None = None
    description: Text | None = None


def _check_new(secrets: dict[str, SecretEntry]) -> dict[str, SecretEntry]:
    # An entry that sets no value creates no secret. A client that sends a response back must not fail on a name that
    # became reserved after the secret was stored.
    check_free(name for name, entry in secrets.items() if entry.secret and entry.secret.get_secret_value() != MASK)
    return secrets


ProviderTokens = Annotated[
    dict[str, Annotated[ProviderTokenEntry, BeforeValidator(_token_entry)]], BeforeValidator(_check_providers)
]
SecretEntries = Annotated[
    dict[str, Annotated[SecretEntry, BeforeValidator(_secret_entry)]],
    Field(max_length=MAX_SECRETS),
    BeforeValidator(check_names),
    AfterValidator(_check_new),
]


class SecretsStore(Strict):
    """Provider tokens and custom secrets to add or to change. None is removed."""

    provider_tokens: ProviderTokens | None = None
    custom_secrets: SecretEntries | None = None


class SettingsUpdate(Strict):
    """The settings to change (wire contract, section 5). A field that is not sent stays unchanged."""

    language: Line | None = None
    agent: Line | None = None
    max_iterations: Count | None = None
    security_analyzer: Analyzer | None = None
    confirmation_mode: bool | None = None
    llm_model: ModelName | None = None
    llm_api_key: Key | None = None
    llm_base_url: BaseUrl | None = None
    remote_runtime_resource_factor: Count | None = None
    secrets_store: SecretsStore | None = None
    enable_default_condenser: bool | None = None
    condenser_max_size: Annotated[int, Field(ge=20, le=2**31 - 1)] | None = None
    enable_sound_notifications: bool | None = None
    enable_proactive_conversation_starters: bool | None = None
    enable_solvability_analysis: bool | None = None
    user_consents_to_analytics: bool | None = None
    sandbox_base_container_image: Text | None = None
    sandbox_runtime_container_image: Text | None = None
    mcp_config: McpEitherShape | None = None
    search_api_key: Key | None = None
    sandbox_api_key: Key | None = None
    max_budget_per_task: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    email: Line | None = None
    email_verified: bool | None = None
    git_user_name: Line | None = None
    git_user_email: Line | None = None


class GitProvidersUpdate(Strict):
    """Git providers' tokens to store (wire contract 1.9). Null, like an absent field, changes nothing."""

    provider_tokens: ProviderTokens | None = None
    mcp_config: McpEitherShape | None = None


def in_clear(value: Any) -> Any:
    """Return the fields of a request that were sent, as plain values, with secrets in clear."""
    if isinstance(value, SecretStr):
        return value.get_secret_value()
    if isinstance(value, McpAdditions):
        return Additions((name, in_clear(servers)) for name, servers in value)
    if isinstance(value, McpPatch):
        return Patch(in_clear(value.root))
    if isinstance(value, BaseModel):
        return {name: in_clear(getattr(value, name)) for name in value.model_fields_set}
    if isinstance(value, dict):
        return {name: in_clear(item) for name, item in value.items()}
    return [in_clear(item) for item in value] if isinstance(value, list) else value


class Message(BaseModel):
    """The response to a command for settings, secrets or git providers."""

    message: str


class SecretInfo(BaseModel):
    """A custom secret, with its value masked."""

    secret: str = MASK
    description: str | None = None


class SecretsStoreInfo(BaseModel):
    """V0's shape. Tokens are in `provider_tokens_set`; names of secrets are an Agent Workspace extension."""

    provider_tokens: dict[str, Any] = {}
    custom_secrets: dict[str, SecretInfo]


class CustomSecrets(BaseModel):
    """All of a user's secrets, without their values."""

    custom_secrets: list[CustomSecretInfo]


class SettingsInfo(OpenSettings):
    """V0's settings. The three keys are always null; `sandbox_api_key_set` is an Agent Workspace extension."""

    llm_api_key: str | None = None
    search_api_key: str | None = None
    sandbox_api_key: str | None = None
    llm_api_key_set: bool
    search_api_key_set: bool
    sandbox_api_key_set: bool
    mcp_config: McpConfigInfo | None
    secrets_store: SecretsStoreInfo
    provider_tokens_set: dict[str, str | None]


def serialize_settings(
    stored: StoredSettings, secrets: Mapping[str, str | None], hosts: Mapping[str, str | None]
) -> SettingsInfo:
    """Show the settings to their owner."""
    servers = stored.mcp_config
    shown = {name: SecretInfo(description=text) for name, text in secrets.items()}
    base_url = stored.llm_base_url
    return SettingsInfo(
        **stored.model_dump(include=set(OpenSettings.model_fields) - {"llm_base_url"}),
        llm_base_url=base_url and mask_url(base_url),
        llm_api_key_set=bool(stored.llm_api_key),
        search_api_key_set=bool(stored.search_api_key),
        sandbox_api_key_set=bool(stored.sandbox_api_key),
        mcp_config=None if servers is None else McpConfigInfo.model_validate(mask_servers(servers)),
        secrets_store=SecretsStoreInfo(custom_secrets=shown),
        provider_tokens_set=dict(hosts),
    )
