"""Saved LLM configurations on the wire (wire contract 1.8)."""

from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.schemas.v1.agent_settings import LlmConfig
from api.schemas.v1.fields import Line, Strict
from shared.users.llm_profiles import Llm, LlmProfiles, mask_llm, mask_urls

NAME = r"^[A-Za-z0-9._-]{1,64}$"
# Not of dots alone: clients resolve `.` and `..` in a path, and could not name the profile.
NEW_NAME = r"^[A-Za-z0-9._-]*[A-Za-z0-9_-][A-Za-z0-9._-]*$"

ProfileName = Annotated[str, Path(min_length=1, max_length=64, pattern=NAME)]
NewProfileName = Annotated[str, Path(min_length=1, max_length=64, pattern=NEW_NAME)]


class StrictLlmConfig(LlmConfig):
    """A complete configuration. Unknown fields are refused, unless they are null."""

    model_config = ConfigDict(extra="forbid")

    # The agent SDK writes these for each LLM; the agent server sets its own.
    usage_id: Line | None = None
    log_completions: bool | None = None
    log_completions_folder: Line | None = None
    subscription_vendor: None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, sent: Any) -> Any:
        # Newer clients send fields that this version does not know, with null. The agent SDK writes a computed one.
        if not isinstance(sent, dict):
            return sent
        known = {name: value for name, value in sent.items() if value is not None}
        if known.get("is_subscription") is False:
            del known["is_subscription"]
        return known


class SaveProfileRequest(Strict):
    """The configuration to save; without `llm`, the one in force."""

    include_secrets: bool = True
    llm: StrictLlmConfig | None = None
    preserve_existing_api_key: bool = False


class RenameProfileRequest(Strict):
    """The new name of a profile."""

    new_name: Annotated[str, Field(min_length=1, max_length=64, pattern=NEW_NAME)]


class ProfileInfo(BaseModel):
    """A profile in the list."""

    name: str
    model: str | None = None
    base_url: str | None = None
    api_key_set: bool = False


class ProfileListResponse(BaseModel):
    """All profiles, and the name of the one in force."""

    profiles: list[ProfileInfo]
    active_profile: str | None = None


class ProfileDetailResponse(BaseModel):
    """A profile. Its API key is null, and its other secrets are masked."""

    name: str
    config: dict[str, Any]
    api_key_set: bool = False


class ProfileMutationResponse(BaseModel):
    """The response to a change."""

    name: str
    message: str


class ActivateProfileResponse(ProfileMutationResponse):
    """The response to an activation."""

    model: str | None = None


def list_profiles(saved: LlmProfiles) -> ProfileListResponse:
    """Show the profiles to their owner."""
    profiles = [
        ProfileInfo(
            name=name, model=llm.get("model"), base_url=llm.get("base_url"), api_key_set=bool(llm.get("api_key"))
        )
        for name, llm in ((name, mask_urls(llm)) for name, llm in saved.profiles.items())
    ]
    return ProfileListResponse(profiles=profiles, active_profile=saved.active)


def serialize_profile(name: str, llm: Llm) -> ProfileDetailResponse:
    """Show a profile to its owner."""
    plain: Llm = {"model": None, "base_url": None}
    config = plain | mask_llm(llm) | {"api_key": None}
    return ProfileDetailResponse(name=name, config=config, api_key_set=bool(llm.get("api_key")))
