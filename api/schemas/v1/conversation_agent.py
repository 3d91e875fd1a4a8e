"""Skills and hooks of a project on the wire (wire contract 1.1)."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from api.errors.upstream import BadGateway
from api.schemas.v1.llm_profiles import NAME


class ProjectSkill(BaseModel):
    """A skill, and the words that bring it up."""

    name: str
    type: str
    content: str
    triggers: list[str] = Field(default_factory=list)


class SkillList(BaseModel):
    """The skills of a project."""

    skills: list[ProjectSkill]


class Hook(BaseModel):
    """What is run, and for how long at most, in seconds."""

    model_config = ConfigDict(populate_by_name=True)

    type: str = "command"
    command: str
    timeout: int = 60
    in_background: bool = Field(default=False, alias="async")


class HookMatcher(BaseModel):
    """What is run for which of the agent's tools."""

    matcher: str = "*"
    hooks: list[Hook]


class HookEvent(BaseModel):
    """What is run at what."""

    event_type: str
    matchers: list[HookMatcher]


class HookList(BaseModel):
    """The hooks of a project."""

    hooks: list[HookEvent]


class SwitchProfileRequest(BaseModel):
    """The LLM profile to go on with."""

    profile_name: str = Field(min_length=1, pattern=NAME)


class SwitchAcpModelRequest(BaseModel):
    """The model that an agent of another maker is to go on with."""

    model: str = Field(min_length=1, max_length=500)


def list_skills(said: Any) -> SkillList:
    """The skills that an agent server names.

    Raises:
        Unanswered: that is no list of skills.
    """
    try:
        return SkillList.model_validate({"skills": said["skills"]})
    except (ValueError, KeyError, TypeError):
        raise BadGateway("the agent server's answer is no list of skills") from None


def list_hooks(said: Any) -> HookList:
    """The hooks that an agent server names.

    Raises:
        Unanswered: that is no list of hooks.
    """
    try:
        events = said["hook_config"] or {}
        found = [{"event_type": name, "matchers": matchers} for name, matchers in events.items() if matchers]
        return HookList.model_validate({"hooks": found})
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BadGateway("the agent server's answer is no list of hooks") from None
