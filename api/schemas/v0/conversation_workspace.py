"""What V0 says of a conversation's sandbox (wire contract, section 5)."""

from pydantic import BaseModel, Field

from api.schemas.v1.start_tasks import MAX_MESSAGE_LENGTH

# By the agent server's word for what has become of a file.
CHANGES = {"ADDED": "A", "DELETED": "D", "UPDATED": "M", "MOVED": "R"}


class RuntimeIds(BaseModel):
    """What the conversation and its sandbox are called."""

    runtime_id: str
    session_id: str


class VscodeUrl(BaseModel):
    """Where the sandbox's editor is; null unless it runs."""

    vscode_url: str | None


class WebHosts(BaseModel):
    """Where what the agent serves is found, with the port inside the sandbox; empty unless it runs."""

    hosts: dict[str, int]


class PlainMessage(BaseModel):
    """A message of text alone."""

    message: str = Field(min_length=1, max_length=MAX_MESSAGE_LENGTH)


class FileContent(BaseModel):
    """A text file."""

    code: str
