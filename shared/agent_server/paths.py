"""Paths of an agent server's interface (wire contract 3), and of the plan that its planning agent writes."""

from uuid import UUID

CONVERSATIONS = "/api/conversations"
COUNT = f"{CONVERSATIONS}/count"
SEARCH = f"{CONVERSATIONS}/search"
INIT = "/api/init"
COMMAND = "/api/bash/execute_bash_command"
UPLOAD = "/api/file/upload"
DOWNLOAD = "/api/file/download"
CHANGES = "/api/git/changes"
DIFF = "/api/git/diff"
SKILLS = "/api/skills"
HOOKS = "/api/hooks"
# A path that does not exist.
NOWHERE = "/api/nowhere"
# Git providers whose web pages hide folders that begin with a dot.
DOTLESS = ("gitlab", "azure_devops")


def profile(name: str) -> str:
    """Return the path of a saved LLM profile."""
    return f"/api/profiles/{name}"


def conversation(conversation_id: str | UUID, action: str = "") -> str:
    """Return the path of a conversation, or of an action on it, as in "/interrupt"."""
    return f"{CONVERSATIONS}/{conversation_id}{action}"


def events(conversation_id: str | UUID) -> str:
    """Return the path to which a conversation's messages are sent."""
    return conversation(conversation_id, "/events")


def event_search(conversation_id: str | UUID) -> str:
    """Return the path of a conversation's events, page by page."""
    return conversation(conversation_id, "/events/search")


def plan(git_provider: str | None) -> str:
    """Return the path of the plan in a project: the only file that a planning agent may write (wire contract 1.1)."""
    return f"{'agents-tmp-config' if git_provider in DOTLESS else '.agents_tmp'}/PLAN.md"
