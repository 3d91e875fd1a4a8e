"""Sandbox specs: read, choose, change, lock."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import and_, delete, func
from sqlalchemy import select as sql_select
from sqlmodel import Session, col, select

from shared.db.database import Database
from shared.errors import Conflict, NotFound
from shared.models import NodeSpecBackoff, Sandbox, SandboxSpec, UserSettings
from shared.sandboxes import deadlines, due_deadlines, egress
from shared.sql import locks
from shared.sql.pagination import Order, Page, read_page
from shared.sql.statements import all_columns, bind, bind_values, locked, make_row
from shared.states import Desired

# Prefixes of the columns that don't affect a container: a change of these keeps the revision. Only whether the egress
# has host names affects it, because programs find the proxy by environment variables.
UNREVISIONED = ("warm_", "wake_", "egress")
# The variable by which an agent server accepts small context windows, and its values.
SHORT_WINDOWS, ALLOWING = "ALLOW_SHORT_CONTEXT_WINDOWS", ("true", "1", "yes")
READ = sql_select(*all_columns(SandboxSpec)).where(col(SandboxSpec.id) == bind("spec_id"))


def list_specs(session: Session) -> list[SandboxSpec]:
    """Return every spec, the default first."""
    return list(session.exec(select(SandboxSpec).order_by(col(SandboxSpec.position), col(SandboxSpec.id))).all())


def search_specs(session: Session, page_id: str | None, limit: int) -> Page[SandboxSpec]:
    """Return a page of specs, the default first."""
    order = Order(col(SandboxSpec.position), col(SandboxSpec.id))
    return read_page(session, select(SandboxSpec), order, page_id, limit)


def get_spec(session: Session, spec_id: str | None) -> SandboxSpec:
    """Return the spec of that id, or the default spec for None.

    Raises:
        NotFound: there is no such spec.
    """
    spec = session.get(SandboxSpec, spec_id) if spec_id else _default(session)
    if spec is None:
        raise NotFound("sandbox spec", spec_id or "default")
    return spec


def choose_spec(session: Session, owner_id: str, spec_id: str | None) -> SandboxSpec:
    """Return the spec of that id. None stands for the spec that the user's settings name, or else the default spec.

    Raises:
        NotFound: there is no such spec.
    """
    if spec_id:
        return get_spec(session, spec_id)
    settings = session.get(UserSettings, owner_id)
    return prefer_spec(session, settings.document.get("default_sandbox_spec_id") if settings else None)


def prefer_spec(session: Session, preferred: str | None) -> SandboxSpec:
    """Return the spec that a user's settings name, if it exists, or else the default spec.

    Raises:
        NotFound: there is no spec.
    """
    found = session.get(SandboxSpec, preferred) if preferred else None
    return found or get_spec(session, None)


def is_choosable(session: Session, owner_id: str, spec_id: str) -> bool:
    """Whether the user's settings may name that spec: it exists, or they name it already."""
    settings = session.get(UserSettings, owner_id)
    named = settings.document.get("default_sandbox_spec_id") if settings else None
    return spec_id == named or session.get(SandboxSpec, spec_id) is not None


def allow_short_windows(session: Session) -> bool:
    """Whether the environment of a spec lets its agent servers accept small context windows."""
    return any(spec.env.get(SHORT_WINDOWS, "").lower() in ALLOWING for spec in list_specs(session))


def read_spec(database: Database, spec_id: str) -> SandboxSpec:
    """Return the spec of an existing sandbox, detached from any session."""
    [row] = database.fetch(READ, bind_values(spec_id=spec_id))
    spec: SandboxSpec = make_row(SandboxSpec, row)
    return spec


def set_deadlines(session: Session, spec_id: str, durations: Mapping[str, int | None]) -> int:
    """Change the spec's deadlines, and with them those of its sandboxes. Deadlines that are not named stay.

    Args:
        durations: seconds by the names of `shared.sandboxes.deadlines.FIELDS`; None means never.

    Returns:
        The number of sandboxes whose delete deadline has passed with the change.

    Raises:
        NotFound: there is no such spec.
    """
    # Lock the spec before its sandboxes: no new sandbox of it is created until the transaction ends.
    spec = _lock(session, spec_id)
    for name, seconds in durations.items():
        setattr(spec, name, seconds)
    session.flush()
    not_deleted = and_(col(Sandbox.spec_id) == spec_id, col(Sandbox.desired) != Desired.DELETED)
    for sandbox_id in session.execute(locks.in_order(Sandbox, not_deleted)).scalars().all():
        deadlines.refresh(session, sandbox_id)
    return due_deadlines.count_due_deletes(session, spec_id)


def change(session: Session, spec_id: str, columns: Mapping[str, Any]) -> None:
    """Change columns of a spec: its next sandboxes, its warm pool, or wake on traffic.

    A change of the next sandboxes raises the revision, so outdated warm sandboxes are removed.

    Raises:
        NotFound: there is no such spec.
    """
    spec = _lock(session, spec_id)
    revised = any(getattr(spec, name) != value for name, value in columns.items() if not name.startswith(UNREVISIONED))
    if revised or _has_names(spec.egress) != _has_names(columns.get("egress", spec.egress)):
        spec.revision += 1
    for name, value in columns.items():
        setattr(spec, name, value)
    spec.warm_failures, spec.warm_failed_at, spec.warm_detail = 0, None, None


def lock_shared(session: Session, spec: SandboxSpec) -> None:
    """Lock the spec against changes until the transaction ends, and refresh it.

    A concurrent change would miss the sandbox that the caller creates. Other transactions may share the lock. A
    caller that makes room for a sandbox takes this lock first.
    """
    found = select(SandboxSpec).where(SandboxSpec.id == spec.id)
    session.exec(locked(found, read=True)).one()


def lock(session: Session, spec: SandboxSpec) -> None:
    """Lock the spec against other changes and new sandboxes until the transaction ends, and refresh it."""
    session.refresh(spec, with_for_update={"key_share": True})


def get_specs(session: Session, ids: list[str]) -> list[SandboxSpec | None]:
    """Return the specs in the order of `ids`, with None for an unknown one."""
    found = {spec.id: spec for spec in session.exec(select(SandboxSpec).where(col(SandboxSpec.id).in_(ids))).all()}
    return [found.get(spec_id) for spec_id in ids]


def add_spec(session: Session, spec: SandboxSpec, *, default: bool = False) -> None:
    """Add a spec after the others, or before them as the default.

    Raises:
        Conflict: there is a spec for that image already.
    """
    if session.get(SandboxSpec, spec.id) is not None:
        raise Conflict(f"there is a spec for {spec.id!r} already")
    edge = func.min if default else func.max
    position = session.exec(select(edge(SandboxSpec.position))).one()
    spec.position = 0 if position is None else position + (-1 if default else 1)
    session.add(spec)


def make_default(session: Session, spec_id: str) -> None:
    """Place the spec before the others. Its containers and its warm pool stay.

    Raises:
        NotFound: there is no such spec.
    """
    spec, first = _lock(session, spec_id), get_spec(session, None)
    if spec is not first:
        spec.position = first.position - 1


def remove_spec(session: Session, spec_id: str) -> None:
    """Remove a spec that has neither sandboxes nor tombstones, with its circuit breakers.

    Raises:
        NotFound: there is no such spec.
        Conflict: sandboxes refer to it, or tombstones (`shared.retention`).
    """
    spec = get_spec(session, spec_id)
    if session.exec(select(Sandbox.id).where(Sandbox.spec_id == spec_id).limit(1)).first() is not None:
        raise Conflict(f"{spec_id!r} has sandboxes, or records of deleted ones, which are kept for 30 days at least")
    session.execute(delete(NodeSpecBackoff).where(col(NodeSpecBackoff.spec_id) == spec_id))
    session.delete(spec)


def _has_names(text: str) -> bool:
    return bool(egress.parse(text).names)


def _lock(session: Session, spec_id: str) -> SandboxSpec:
    spec = get_spec(session, spec_id)
    lock(session, spec)
    return spec


def _default(session: Session) -> SandboxSpec | None:
    return session.exec(select(SandboxSpec).order_by(col(SandboxSpec.position), col(SandboxSpec.id))).first()
