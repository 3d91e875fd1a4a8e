"""Sandboxes, their deadlines and their specs on the wire."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, PlainValidator, WithJsonSchema

from api.schemas.page_text import cached
from api.schemas.sandbox_urls import SandboxUrls
from api.schemas.v1.fields import SandboxStatus, Success, Time
from shared.crypto import Vault
from shared.models import Sandbox, SandboxSpec
from shared.sandboxes.deadlines import FIELDS, NEVER, Durations
from shared.sandboxes.lists import read_text
from shared.sandboxes.status import agent_server
from shared.states import MAX_DEADLINE_SECONDS, Desired, PauseKind, Status

PAUSE_KINDS = {Desired.PAUSED: PauseKind.FROZEN, Desired.STOPPED: PauseKind.STOPPED}


def _read_own(value: Any) -> int | None:
    if value is None:
        return None
    if value == "never":
        return NEVER
    # Not `isinstance`: true is not a number.
    if type(value) is not int or not 1 <= value <= MAX_DEADLINE_SECONDS:
        raise ValueError(
            f'must be an integer of seconds from 1 to {MAX_DEADLINE_SECONDS}, "never", or null for the spec\'s value'
        )
    return value


OwnDuration = Annotated[
    int | None,
    PlainValidator(_read_own),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": MAX_DEADLINE_SECONDS},
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


class ExposedUrl(BaseModel):
    """An exposed port of a sandbox; `port` is the one inside the container."""

    name: str
    url: str
    port: int


class SandboxInfo(DurationsInfo):
    """V1's SandboxInfo. Fields from `desired_status` on, and deadlines in force, are Agent Workspace extensions."""

    id: str
    created_by_user_id: str | None
    sandbox_spec_id: str
    status: SandboxStatus
    session_api_key: str | None
    exposed_urls: list[ExposedUrl] | None = None
    created_at: Time
    # The status that the sandbox is to reach: RUNNING or PAUSED.
    desired_status: str
    # FROZEN or STOPPED, while `desired_status` is PAUSED.
    desired_pause_kind: str | None = None
    # Why the sandbox is in ERROR: a code, and a text with the container's last log lines.
    reason: str | None = None
    detail: str | None = None
    # FROZEN (memory stays) or STOPPED (files stay), while PAUSED.
    pause_kind: str | None = None
    updated_at: Time
    # The time of the last activity, to within ten seconds.
    last_active_at: Time
    # When the sandbox is deleted, active or not; null: never.
    expires_at: Time | None = None
    next_deadline: DeadlineInfo | None = None
    # In the response to a start: the caller's sandboxes that are paused to make room for this one.
    paused_sandbox_ids: list[str] = Field(default_factory=list)


class Resumed(Success):
    """V1's response to a resume. `paused_sandbox_ids`, an extension, are the sandboxes that are paused to make room."""

    paused_sandbox_ids: list[str] = Field(default_factory=list)


class TransitionInfo(BaseModel):
    """One transition of a sandbox's status (an Agent Workspace extension)."""

    from_status: str | None
    to_status: str
    reason: str | None
    pause_kind: str | None
    at: Time


class SandboxSpecInfo(DurationsInfo):
    """V1's SandboxSpecInfo, with deadlines (an Agent Workspace extension).

    `initial_env` is the spec's own. It has nothing of the server's environment.
    """

    id: str
    command: list[str] | None
    created_at: Time
    initial_env: dict[str, str]
    working_dir: str


def serialize_sandbox(
    sandbox: Sandbox,
    durations: Durations,
    vault: Vault,
    urls: SandboxUrls,
    paused: Sequence[Sandbox] = (),
) -> SandboxInfo:
    """Show a sandbox and its deadlines in force to its owner, with key and URLs only while it runs (wire contract 1.5).

    Args:
        paused: sandboxes that are paused to make room for it.
    """
    running, desired = sandbox.status == Status.RUNNING, Desired(sandbox.desired)
    return SandboxInfo(
        id=sandbox.id,
        created_by_user_id=sandbox.owner_id,
        sandbox_spec_id=sandbox.spec_id,
        status=sandbox.status,
        session_api_key=vault.decrypt_if_possible(sandbox.session_key) if running else None,
        exposed_urls=serialize_urls(sandbox, urls) if running else None,
        created_at=sandbox.created_at,
        desired_status=Status.PAUSED if desired in PAUSE_KINDS else desired,
        desired_pause_kind=PAUSE_KINDS.get(desired),
        reason=sandbox.reason,
        detail=sandbox.detail,
        pause_kind=sandbox.pause_kind,
        updated_at=sandbox.updated_at,
        last_active_at=sandbox.last_active_at,
        expires_at=sandbox.expires_at,
        next_deadline=_serialize_deadline(sandbox),
        **{name: getattr(durations, name) for name in FIELDS},
        paused_sandbox_ids=[row.id for row in paused],
    )


@cached
def write_sandbox(text: str, vault: Vault, urls: SandboxUrls) -> bytes:
    """Encode a sandbox of a list."""
    return serialize_sandbox(*read_text(text), vault, urls).model_dump_json().encode()


def wire_status(sandbox: Sandbox | None) -> str:
    """Return the status that a conversation shows: MISSING once the sandbox is deleted, or is to be deleted."""
    gone = (Status.DELETING, Status.DELETED)
    if sandbox is None or sandbox.desired == Desired.DELETED or sandbox.status in gone:
        return "MISSING"
    return sandbox.status


def agent_server_url(sandbox: Sandbox | None, urls: SandboxUrls) -> str | None:
    """Return the URL of the sandbox's agent server for a caller, without a trailing slash; None unless it runs."""
    if sandbox is None or wire_status(sandbox) != Status.RUNNING or agent_server(sandbox.exposed_urls) is None:
        return None
    return urls.agent_server(sandbox.id)


def _serialize_deadline(sandbox: Sandbox) -> DeadlineInfo | None:
    if sandbox.deadline_at is None:
        return None
    return DeadlineInfo.model_validate({"at": sandbox.deadline_at, "does": str(sandbox.deadline_does)})


def serialize_urls(sandbox: Sandbox, urls: SandboxUrls) -> list[ExposedUrl]:
    """Show the URLs of a running sandbox to a caller."""
    return [ExposedUrl(**url | {"url": urls.exposed(sandbox.id, url)}) for url in sandbox.exposed_urls or []]


def serialize_spec(spec: SandboxSpec) -> SandboxSpecInfo:
    """Show a spec to any caller with a key."""
    return SandboxSpecInfo(
        id=spec.id,
        command=spec.command,
        created_at=spec.created_at,
        initial_env=spec.env,
        working_dir=spec.working_dir,
        **{name: getattr(spec, name) for name in FIELDS},
    )
