"""Sandbox specs."""

from sqlalchemy import func
from sqlmodel import Session, col, select

from shared.errors import Conflict, NotFound
from shared.models import Sandbox, SandboxSpec
from shared.store.pages import Order, Page, read_page


def list_specs(session: Session) -> list[SandboxSpec]:
    """Every spec, the default first."""
    return list(session.exec(select(SandboxSpec).order_by(col(SandboxSpec.position), col(SandboxSpec.id))).all())


def search_specs(session: Session, page_id: str | None, limit: int) -> Page[SandboxSpec]:
    """A page of specs, the default first."""
    order = Order(col(SandboxSpec.position), col(SandboxSpec.id))
    return read_page(session, select(SandboxSpec), order, page_id, limit)


def get_spec(session: Session, spec_id: str | None) -> SandboxSpec:
    """The spec of that id, or the default one for None.

    Raises:
        NotFound: there is none.
    """
    spec = session.get(SandboxSpec, spec_id) if spec_id else _default(session)
    if spec is None:
        raise NotFound("sandbox spec", spec_id or "default")
    return spec


def get_specs(session: Session, ids: list[str]) -> list[SandboxSpec | None]:
    """The specs of those ids in order, None for an unknown one."""
    found = {spec.id: spec for spec in session.exec(select(SandboxSpec).where(col(SandboxSpec.id).in_(ids))).all()}
    return [found.get(spec_id) for spec_id in ids]


def add_spec(session: Session, spec: SandboxSpec, *, default: bool = False) -> None:
    """Add a spec after the others, or before them to make it the default.

    Raises:
        Conflict: there is one for that image.
    """
    if session.get(SandboxSpec, spec.id) is not None:
        raise Conflict(f"there is a spec for {spec.id!r} already")
    edge = func.min if default else func.max
    position = session.exec(select(edge(SandboxSpec.position))).one()
    spec.position = 0 if position is None else position + (-1 if default else 1)
    session.add(spec)


def remove_spec(session: Session, spec_id: str) -> None:
    """Remove a spec that no sandbox was ever made from.

    Raises:
        NotFound: there is none.
        Conflict: sandboxes refer to it.
    """
    spec = get_spec(session, spec_id)
    if session.exec(select(Sandbox.id).where(Sandbox.spec_id == spec_id).limit(1)).first() is not None:
        raise Conflict(f"sandboxes were made from {spec_id!r}")
    session.delete(spec)


def _default(session: Session) -> SandboxSpec | None:
    return session.exec(select(SandboxSpec).order_by(col(SandboxSpec.position), col(SandboxSpec.id))).first()
