"""A project's skills and hooks, and changes of its agent, on the wire (wire contract 1.1)."""

from pydantic import BaseModel, ConfigDict, Field

from api.schemas.v1.llm_profiles import NAME
from shared.agent_server.errors import WrongServer
from shared.agent_server.responses import Hooks, Skills


class ProjectSkill(BaseModel):
    """A skill, and the words that trigger it."""

    name: str
    type: str
    content: str
    triggers: list[str] = Field(default_factory=list)


class SkillList(BaseModel):
    """The skills of a project."""

    skills: list[ProjectSkill]


class Hook(BaseModel):
    """A command that a hook runs; `timeout` is in seconds."""

    model_config = ConfigDict(populate_by_name=True)

    type: str = "command"
    command: str
    timeout: int = 60
    in_background: bool = Field(default=False, alias="async")


class HookMatcher(BaseModel):
    """The hooks for those of the agent's tools that match."""

    matcher: str = "*"
    hooks: list[Hook]


class HookEvent(BaseModel):
    """The hooks of one type of event."""

    event_type: str
    matchers: list[HookMatcher]


class HookList(BaseModel):
    """The hooks of a project."""

    hooks: list[HookEvent]


class SwitchProfileRequest(BaseModel):
    """The LLM profile that the agent continues with."""

    profile_name: str = Field(min_length=1, pattern=NAME)


class SwitchAcpModelRequest(BaseModel):
    """The model that an ACP agent continues with."""

    model: str = Field(min_length=1, max_length=500)


def list_skills(found: Skills) -> SkillList:
    """Read the skills in an agent server's response.

    Raises:
        WrongServer: one of them is not a skill.
    """
    try:
        return SkillList.model_validate({"skills": found.skills})
    except ValueError:
        raise WrongServer("the agent server's response is not a list of skills") from None


def list_hooks(found: Hooks) -> HookList:
    """Read the hooks in an agent server's response.

    Raises:
        WrongServer: one of them is not a hook.
    """
    events = (found.hook_config or {}).items()
    try:
        return HookList.model_validate(
            {"hooks": [{"event_type": name, "matchers": matchers} for name, matchers in events if matchers]}
        )
    except ValueError:
        raise WrongServer("the agent server's response is not a list of hooks") from None
