"""V1's settings: V1's nested shape and V0's flat shape of the same values (wire contract 1.7)."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from api.schemas.v0.settings import SettingsInfo, SettingsUpdate, in_clear, serialize_settings
from api.schemas.v1.agent_settings import AgentSettingsDiff, ConversationSettingsDiff
from api.schemas.v1.fields import Line, Strict, Text
from shared.users.llm_profiles import LlmProfiles, mask_llm
from shared.users.settings import OpenSettings, StoredSettings, V1Settings
from shared.users.settings_v1 import (
    DEFAULT_AGENT,
    flatten,
    flatten_conversation,
    nest,
    nest_conversation,
    security_analyzer,
)

GroupingStrategy = Literal[
    "NO_GROUPING", "GROUP_BY_NEWEST", "LEAST_RECENTLY_USED", "FEWEST_CONVERSATIONS", "ADD_TO_ANY"
]

BEYOND_V0 = V1Settings.model_fields.keys() - OpenSettings.model_fields.keys()
MAX_MARKETPLACES = 100
EXPOSED = ("llm_api_key", "llm_base_url", "search_api_key", "sandbox_api_key", "mcp_config")


class Marketplace(Strict):
    """A source of skills."""

    name: Annotated[Line, Field(min_length=1)]
    source: Annotated[Text, Field(min_length=1)]
    ref: Line | None = None
    repo_path: Text | None = None
    auto_load: bool | Annotated[list[Line], Field(max_length=1000)] = False


class MarketplaceInfo(Marketplace):
    """A source of skills in a response. All are the user's own."""

    scope: Literal["instance", "org", "personal"] | None = "personal"


class SettingsUpdateV1(SettingsUpdate):
    """The settings to change, in either shape. A field that is not sent stays unchanged.

    If both shapes set a value, the nested one wins.
    """

    user_version: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    disabled_skills: Annotated[list[Line], Field(max_length=1000)] | None = None
    git_full_clone: bool | None = None
    v1_enabled: bool | None = None
    sandbox_grouping_strategy: GroupingStrategy | None = None
    default_sandbox_spec_id: Annotated[Line, Field(max_length=256)] | None = None
    registered_marketplaces: Annotated[list[Marketplace], Field(max_length=MAX_MARKETPLACES)] | None = None
    title_llm_profile: Line | None = None
    agent_settings_diff: AgentSettingsDiff | None = None
    conversation_settings_diff: ConversationSettingsDiff | None = None

    @model_validator(mode="before")
    @classmethod
    def _refuse_whole(cls, sent: Any) -> Any:
        whole = [
            name for name in ("agent_settings", "conversation_settings") if isinstance(sent, dict) and name in sent
        ]
        if whole:
            raise ValueError(f"send {' and '.join(f'{name}_diff' for name in whole)}: the API accepts only changes")
        return sent


class ConversationSettingsInfo(BaseModel):
    """V1's settings of conversations."""

    schema_version: int
    max_iterations: int
    confirmation_mode: bool
    security_analyzer: Literal["llm", "none"] | None


class LlmProfilesInfo(BaseModel):
    """The saved LLM profiles by name, and the name of the one in force."""

    profiles: dict[str, Any]
    active: str | None


class SettingsInfoV1(SettingsInfo):
    """V1's settings, with V0's names as well. Keys are null, and other secrets are masked."""

    user_version: int | None
    disabled_skills: list[str] | None
    git_full_clone: bool
    v1_enabled: bool
    sandbox_grouping_strategy: GroupingStrategy
    default_sandbox_spec_id: str | None
    registered_marketplaces: list[MarketplaceInfo]
    inherited_marketplaces: list[MarketplaceInfo] = Field(default_factory=list)
    title_llm_profile: str | None
    agent_settings: dict[str, Any]
    conversation_settings: ConversationSettingsInfo
    llm_profiles: LlmProfilesInfo
    active_agent_profile_id: str | None = None
    active_agent_profile_revision: int | None = None


def read_changes(update: SettingsUpdateV1) -> dict[str, Any]:
    """Return the values that were sent, under the names of their columns, with secrets in clear."""
    changes: dict[str, Any] = in_clear(update)
    agent = changes.pop("agent_settings_diff", None)
    conversation = changes.pop("conversation_settings_diff", None)
    return changes | flatten(agent or {}) | flatten_conversation(conversation or {})


def serialize_settings_v1(
    stored: StoredSettings, secrets: Mapping[str, str | None], hosts: Mapping[str, str | None], *, expose: bool = False
) -> dict[str, Any]:
    """Return the fields of a `SettingsInfoV1`; with `expose`, secrets are in clear."""
    shown = serialize_settings(stored, secrets, hosts).model_dump()
    if expose:
        shown |= {name: getattr(stored, name) for name in EXPOSED}
    return shown | {
        **{name: getattr(stored, name) for name in BEYOND_V0},
        # Clients of V1 take a flat value that is null for the value.
        "agent": stored.agent or DEFAULT_AGENT,
        "security_analyzer": security_analyzer(stored),
        "agent_settings": nest(stored, expose=expose),
        "conversation_settings": nest_conversation(stored),
        "llm_profiles": serialize_profiles(stored.llm_profiles, expose=expose),
    }


def serialize_profiles(saved: LlmProfiles, *, expose: bool) -> dict[str, Any]:
    """Return the fields of an `LlmProfilesInfo`; with `expose`, secrets are in clear."""
    profiles = {name: llm if expose else mask_llm(llm) for name, llm in saved.profiles.items()}
    return {"profiles": profiles, "active": saved.active}
