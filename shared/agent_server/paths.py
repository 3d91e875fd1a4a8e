"""Paths of an agent server's interface (wire contract 3)."""

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


def profile(name: str) -> str:
    """Return the path of a saved LLM profile."""
    return f"/api/profiles/{name}"


def conversation(conversation_id: str | UUID, action: str = "") -> str:
    """Return the path of a conversation, or of an action on it, as in "/interrupt"."""
    return f"{CONVERSATIONS}/{conversation_id}{action}"


def events(conversation_id: str | UUID) -> str:
    """Return the path that takes a message of a conversation."""
    return conversation(conversation_id, "/events")


def event_search(conversation_id: str | UUID) -> str:
    """Return the path of a conversation's events, page by page."""
    return conversation(conversation_id, "/events/search")
