"""Deadlines of sandboxes on the wire (an Agent Workspace extension)."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, PlainValidator, WithJsonSchema

from api.schemas.v1.wire_types import Time
from shared.models import Sandbox
from shared.sandboxes.deadline_policy import FIELDS, MAX_SECONDS, NEVER, Durations


def _read_own(value: Any) -> int | None:
    if value is None:
        return None
    if value == "never":
        return NEVER
    # Not `isinstance`: true is not a number.
    if type(value) is not int or not 1 <= value <= MAX_SECONDS:
        raise ValueError(
            f'must be an integer of seconds from 1 to {MAX_SECONDS}, "never", or null for the spec\'s value'
        )
    return value


OwnDuration = Annotated[
    int | None,
    PlainValidator(_read_own),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MAX_SECONDS},
                {"const": "never"},
                {"type": "null"},
            ]
        }
    ),
]


class OwnDeadlines(BaseModel):
    """Deadlines of a sandbox that replace its spec's. Fields that are not sent stay unchanged."""

    freeze_after_seconds: OwnDuration = None
    stop_after_seconds: OwnDuration = None
    delete_after_seconds: OwnDuration = None
    max_age_seconds: OwnDuration = None

    @property
    def columns(self) -> dict[str, int | None]:
        """The columns to change."""
        return self.model_dump(include=self.model_fields_set.intersection(FIELDS))


class DeadlineInfo(BaseModel):
    """The next action on the sandbox if it stays idle; `expire` deletes it even if it is active."""

    at: Time
    does: Literal["freeze", "stop", "delete", "expire"]


class DurationsInfo(BaseModel):
    """Deadlines in force, in seconds; null means never."""

    freeze_after_seconds: int | None = None
    stop_after_seconds: int | None = None
    delete_after_seconds: int | None = None
    max_age_seconds: int | None = None


def show_durations(durations: Durations) -> dict[str, int | None]:
    """Return the fields of a `DurationsInfo`."""
    return {name: getattr(durations, name) for name in FIELDS}


def show_deadline(sandbox: Sandbox) -> DeadlineInfo | None:
    """Show a sandbox's next deadline, if it has one."""
    if sandbox.deadline_at is None:
        return None
    return DeadlineInfo.model_validate({"at": sandbox.deadline_at, "does": str(sandbox.deadline_does)})
