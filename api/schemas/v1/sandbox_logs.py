"""Logs of a sandbox's containers on the wire."""

from pydantic import BaseModel, Field

from api.schemas.v1.fields import Time
from shared.container_logs.kept_logs import LogCause


class LogLine(BaseModel):
    """A line that a container has printed, without secrets and control characters."""

    at: str = Field(description="When the line was complete, with nanoseconds, as the engine states it")
    text: str


class ContainerLogInfo(BaseModel):
    """The last lines of one container of the sandbox."""

    container_id: str
    cause: LogCause | None = Field(description="Why the log was kept; null: the container ran when it was read")
    read_at: Time
    is_cut: bool = Field(description="Whether earlier lines are missing")
    lines: list[LogLine]


class SandboxLogsInfo(BaseModel):
    """The logs of a sandbox's containers, oldest first."""

    sandbox_id: str
    is_live: bool = Field(description="Whether a worker has just read the log; if not, it is the kept one")
    is_deleted: bool = Field(description="Whether the sandbox is deleted: no lines will follow")
    cursor: str | None = Field(description="The `after` of the next request; null: no line is known yet")
    containers: list[ContainerLogInfo]
