"""Sandboxes and their specs on the wire."""

from collections.abc import Sequence
from functools import lru_cache
from urllib.parse import urlsplit

from pydantic import BaseModel, Field

from api.paths import SANDBOX_PATH_PREFIX
from api.schemas.page_text import REMEMBERED
from api.schemas.v1.deadlines import DeadlineInfo, DurationsInfo, show_deadline, show_durations
from api.schemas.v1.wire_types import SandboxStatus, Success, Time
from shared.crypto import Vault
from shared.models import Sandbox, SandboxSpec, SandboxTransition
from shared.sandboxes.availability import AGENT_SERVER, agent_server
from shared.sandboxes.deadline_policy import FIELDS, Durations
from shared.sandboxes.lists import read_text
from shared.states import Desired, PauseKind, Status

LOOPBACK = "127.0.0.1"
PAUSE_KINDS = {Desired.PAUSED: PauseKind.FROZEN, Desired.STOPPED: PauseKind.STOPPED}


class ExposedUrl(BaseModel):
    """A port of a sandbox; `port` is the one inside the container."""

    name: str
    url: str
    port: int


class SandboxInfo(DurationsInfo):
    """V1's SandboxInfo; the fields from `desired_status` on are ours, and so are the deadlines in force."""

    id: str
    created_by_user_id: str | None
    sandbox_spec_id: str
    status: SandboxStatus
    session_api_key: str | None
    exposed_urls: list[ExposedUrl] | None = None
    created_at: Time
    # A status that `status` can be: RUNNING or PAUSED.
    desired_status: str
    # FROZEN or STOPPED, as long as it is to be PAUSED.
    desired_pause_kind: str | None = None
    # Why it is in ERROR: a code, and a text with the container's last log lines.
    reason: str | None = None
    detail: str | None = None
    # FROZEN (memory kept) or STOPPED (files kept), while PAUSED.
    pause_kind: str | None = None
    updated_at: Time
    # When somebody or something last made use of it, to within ten seconds.
    last_active_at: Time
    # When it is deleted, used or not; null: never.
    expires_at: Time | None = None
    next_deadline: DeadlineInfo | None = None
    # In the answer of a start: the caller's sandboxes that are paused to make room for this one.
    paused_sandbox_ids: list[str] = Field(default_factory=list)


class Resumed(Success):
    """V1's answer of a resume; `paused_sandbox_ids` are ours: the sandboxes that are paused to make room for it."""

    paused_sandbox_ids: list[str] = Field(default_factory=list)


class TransitionInfo(BaseModel):
    """One move of a sandbox's status (ours)."""

    from_status: str | None
    to_status: str
    reason: str | None
    pause_kind: str | None
    at: Time


class SandboxSpecInfo(DurationsInfo):
    """V1's SandboxSpecInfo, and our deadlines.

    `initial_env` is the spec's own: nothing of the server's environment is in it.
    """

    id: str
    command: list[str] | None
    created_at: Time
    initial_env: dict[str, str]
    working_dir: str


def show_sandbox(
    sandbox: Sandbox,
    durations: Durations,
    vault: Vault,
    paused: Sequence[Sandbox] = (),
    origin: str | None = None,
) -> SandboxInfo:
    """A sandbox for its owner, with its deadlines in force; key and URLs only while it runs (wire contract 1.5).

    Args:
        sandbox: its row.
        durations: after which it is put to rest.
        vault: decrypts its key.
        paused: what makes room for it.
        origin: of a browser that reaches agent servers through us: this service's.
    """
    running, desired = sandbox.status == Status.RUNNING, Desired(sandbox.desired)
    return SandboxInfo(
        id=sandbox.id,
        created_by_user_id=sandbox.owner_id,
        sandbox_spec_id=sandbox.spec_id,
        status=sandbox.status,
        session_api_key=vault.decrypt(sandbox.session_key) if running else None,
        exposed_urls=_show_urls(sandbox, origin) if running else None,
        created_at=sandbox.created_at,
        desired_status=Status.PAUSED if desired.is_paused else desired,
        desired_pause_kind=PAUSE_KINDS.get(desired),
        reason=sandbox.reason,
        detail=sandbox.detail,
        pause_kind=sandbox.pause_kind,
        updated_at=sandbox.updated_at,
        last_active_at=sandbox.last_active_at,
        expires_at=sandbox.expires_at,
        next_deadline=show_deadline(sandbox),
        **show_durations(durations),
        paused_sandbox_ids=[row.id for row in paused],
    )


@lru_cache(REMEMBERED)
def write_sandbox(text: str, vault: Vault, origin: str | None) -> bytes:
    """The JSON of a sandbox in a list; it is remembered by the text, which holds all that it depends on."""
    return show_sandbox(*read_text(text), vault, origin=origin).model_dump_json().encode()


def wire_status(sandbox: Sandbox | None) -> str:
    """The status as a conversation shows it: MISSING once the sandbox is deleted or wished away."""
    gone = (Status.DELETING, Status.DELETED)
    if sandbox is None or sandbox.desired == Desired.DELETED or sandbox.status in gone:
        return "MISSING"
    return sandbox.status


def agent_server_url(sandbox: Sandbox | None, origin: str | None = None) -> str | None:
    """Where the sandbox's agent server answers, without a trailing slash; None unless it runs.

    Args:
        sandbox: its row.
        origin: this service's, for a browser that reaches agent servers through it (decision 32).
    """
    if sandbox is None or wire_status(sandbox) != Status.RUNNING:
        return None
    url = agent_server(sandbox.exposed_urls)
    return f"{origin}{SANDBOX_PATH_PREFIX}/{sandbox.id}" if origin and url else url


def _show_urls(sandbox: Sandbox, origin: str | None) -> list[ExposedUrl]:
    urls = [ExposedUrl(**url) for url in sandbox.exposed_urls or []]
    path = agent_server_url(sandbox, origin)
    if path is None or origin is None:
        return urls
    return [
        url.model_copy(update={"url": path if url.name == AGENT_SERVER else _apart(url.url, origin)}) for url in urls
    ]


def _apart(url: str, origin: str) -> str:
    """An address that a browser opens without our login, where there is one: cookies are sent to all ports of a host.

    The loopback interface has two names, which are two hosts to a browser.
    """
    scheme, host, rest = url.partition(LOOPBACK)
    is_ours = urlsplit(origin).hostname == LOOPBACK and scheme in ("http://", "https://") and rest[:1] in ("", ":", "/")
    return f"{scheme}localhost{rest}" if host and is_ours else url


def show_transition(transition: SandboxTransition) -> TransitionInfo:
    """A move for the sandbox's owner."""
    return TransitionInfo(
        from_status=transition.from_status,
        to_status=transition.to_status,
        reason=transition.reason,
        pause_kind=transition.pause_kind,
        at=transition.at,
    )


def show_spec(spec: SandboxSpec) -> SandboxSpecInfo:
    """A spec for anybody who has a key."""
    return SandboxSpecInfo(
        id=spec.id,
        command=spec.command,
        created_at=spec.created_at,
        initial_env=spec.env,
        working_dir=spec.working_dir,
        **{name: getattr(spec, name) for name in FIELDS},
    )
