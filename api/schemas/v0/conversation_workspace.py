"""A conversation's sandbox and its files in V0 (wire contract, section 5)."""

from pydantic import BaseModel, Field

from api.schemas.v1.start_tasks import MAX_MESSAGE_LENGTH

# V0's letter for each kind of change that the agent server reports for a file.
CHANGES = {"ADDED": "A", "DELETED": "D", "UPDATED": "M", "MOVED": "R"}


class RuntimeIds(BaseModel):
    """The ids of a conversation's sandbox and of the conversation."""

    runtime_id: str
    session_id: str


class VscodeUrl(BaseModel):
    """The URL of the sandbox's editor; null unless the sandbox runs."""

    vscode_url: str | None


class WebHosts(BaseModel):
    """URLs of what the agent serves, each with its port inside the sandbox; empty unless the sandbox runs."""

    hosts: dict[str, int]


class PlainMessage(BaseModel):
    """A message that is one text."""

    message: str = Field(min_length=1, max_length=MAX_MESSAGE_LENGTH)


class FileContent(BaseModel):
    """A text file."""

    code: str
