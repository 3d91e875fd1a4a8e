"""Saved LLM configurations on the wire (wire contract 1.8)."""

from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, model_validator

from api.schemas.v1.agent_settings import LlmConfig
from api.schemas.v1.fields import Line, Strict
from shared.users.llm_profiles import Llm, LlmProfiles, mask_llm

NAME = r"^[A-Za-z0-9._-]{1,64}$"

ProfileName = Annotated[str, Path(min_length=1, max_length=64, pattern=NAME)]


class StrictLlmConfig(LlmConfig):
    """A whole configuration: a field that we don't know is refused, unless it is null."""

    model_config = ConfigDict(extra="forbid")

    # What the agent SDK writes of every LLM; the agent server gives each its own.
    usage_id: Line | None = None
    log_completions: bool | None = None
    log_completions_folder: Line | None = None
    subscription_vendor: None = None

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, sent: Any) -> Any:
        # Newer clients send names that are of no use here, with null.
        return {name: value for name, value in sent.items() if value is not None} if isinstance(sent, dict) else sent


class SaveProfileRequest(Strict):
    """What to keep: a configuration, or without one that which is in force."""

    include_secrets: bool = True
    llm: StrictLlmConfig | None = None
    preserve_existing_api_key: bool = False


class RenameProfileRequest(Strict):
    """What a profile is to be called."""

    new_name: Annotated[str, Field(min_length=1, max_length=64, pattern=NAME)]


class ProfileInfo(BaseModel):
    """A profile in the list."""

    name: str
    model: str | None = None
    base_url: str | None = None
    api_key_set: bool = False


class ProfileListResponse(BaseModel):
    """All of them, and which one is in force."""

    profiles: list[ProfileInfo]
    active_profile: str | None = None


class ProfileDetailResponse(BaseModel):
    """One of them; its key is null, its other secrets are masked."""

    name: str
    config: dict[str, Any]
    api_key_set: bool = False


class ProfileMutationResponse(BaseModel):
    """The answer of a change."""

    name: str
    message: str


class ActivateProfileResponse(ProfileMutationResponse):
    """The answer of an activation."""

    model: str | None = None


def list_profiles(saved: LlmProfiles) -> ProfileListResponse:
    """The profiles for their owner."""
    profiles = [
        ProfileInfo(
            name=name, model=llm.get("model"), base_url=llm.get("base_url"), api_key_set=bool(llm.get("api_key"))
        )
        for name, llm in saved.profiles.items()
    ]
    return ProfileListResponse(profiles=profiles, active_profile=saved.active)


def show_profile(name: str, llm: Llm) -> ProfileDetailResponse:
    """A profile for its owner."""
    plain: Llm = {"model": None, "base_url": None}
    config = plain | mask_llm(llm) | {"api_key": None}
    return ProfileDetailResponse(name=name, config=config, api_key_set=bool(llm.get("api_key")))
