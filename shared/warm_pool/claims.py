"""The statements that claim a warm sandbox: one conditional UPDATE, so concurrent claims never get the same one.

Only warm sandboxes that are neither due nor leased are claimed: a worker with a lease would overwrite the claim with an
older observed state.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    CTE,
    Boolean,
    ColumnElement,
    Integer,
    Select,
    String,
    and_,
    case,
    func,
    literal,
    literal_column,
    null,
    or_,
    select,
)

from shared.changes.change_entry import table_of, with_entry
from shared.clock import now
from shared.crypto import Vault
from shared.models import Node, Sandbox, SandboxSpec, UserSettings
from shared.models.columns import UtcDateTime
from shared.nodes import placement
from shared.sandboxes import status as sandbox_status
from shared.sandboxes.deadlines import FIELDS
from shared.sandboxes.desired_state import generation_columns
from shared.sql.statements import bind, bind_values, guarded_update, locked, make_row
from shared.states import Desired, Status

SANDBOX, NODE, SPEC, SETTINGS = map(table_of, (Sandbox, Node, SandboxSpec, UserSettings))
# The columns that a claim writes besides `claimed_columns` and `generation_columns`, and its bind parameters' types.
TIMES = ("created_at", "last_active_at")
BOUND = ("owner_id", "session_key", "session_key_digest", *FIELDS)
TYPES: dict[str, Any] = {
    "now": UtcDateTime(),
    "due_at": UtcDateTime(),
    "oldest_heartbeat": UtcDateTime(),
    "spec_id": String(),
    "is_ageless": Boolean(),
    **{name: SANDBOX.c[name].type for name in BOUND},
}
ORDER = (SANDBOX.c.status_changed_at, SANDBOX.c.id)
# The text before the spec's id in stored settings.
NAMES_SPEC = '"default_sandbox_spec_id":"'


def bind_claim(vault: Vault, spec_id: str | None, columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a claim.

    Args:
        spec_id: None stands for the spec that `specs.choose_spec` would return; `WITH_ENTRY` only.
        columns: `owner_id`, `due_at`, the sandbox's own deadlines, and `is_ageless` for `WITH_ENTRY`.
    """
    key, digest = vault.new_session_key()
    return bind_values(
        spec_id=spec_id,
        now=now(),
        oldest_heartbeat=placement.oldest_heartbeat(),
        session_key=key,
        session_key_digest=digest,
        **{**dict.fromkeys(FIELDS), **columns},
    )


def read_claim(row: Sequence[Any]) -> tuple[Sandbox, SandboxSpec]:
    """Return the claimed sandbox and its spec from a row of `WITH_ENTRY`."""
    return make_row(Sandbox, row[: len(SANDBOX.c)]), make_row(SandboxSpec, row[len(SANDBOX.c) :])


def is_warm() -> ColumnElement[bool]:
    """Build the condition for a warm sandbox, ready or not, that is not being deleted."""
    # Spelled as in the index's condition: with a parameter, the database could not use the index.
    return and_(SANDBOX.c.owner_id.is_(None), SANDBOX.c.desired != literal_column("'DELETED'"))


# --- prepared statements ----------------------------------------------------------------------------------------------


def _parameter(name: str) -> Any:
    """A bind parameter with the type of its column."""
    return bind(name, TYPES[name])


def _claim(spec_id: Any, revision: Any, returning: Iterable[Any]) -> Any:
    ready = (
        select(SANDBOX.c.id)
        .join(NODE, NODE.c.id == SANDBOX.c.node_id)
        .where(
            is_warm(),
            SANDBOX.c.spec_id == spec_id,
            SANDBOX.c.spec_revision == revision,
            SANDBOX.c.desired == Desired.RUNNING,
            SANDBOX.c.status == Status.RUNNING,
            SANDBOX.c.due_at.is_(None),
            SANDBOX.c.lease_until.is_(None),
            *placement.takes_sandboxes(_parameter("oldest_heartbeat")),
        )
    )
    first = locked(ready.order_by(*ORDER).limit(1), of=SANDBOX, skip_locked=True)
    values = {
        **dict.fromkeys(TIMES, _parameter("now")),
        **{name: _parameter(name) for name in BOUND},
        **sandbox_status.claimed_columns(_parameter("now")),
        **generation_columns(due_at=_parameter("due_at"), at=_parameter("now")),
    }
    return guarded_update(SANDBOX, and_(SANDBOX.c.id == first.scalar_subquery(), is_warm()), values, returning)


def _claim_with_entry() -> Select[Any]:
    """The claim with its transition and change entry, and the spec of the sandbox."""
    spec = _wanted_spec()
    one = select(spec.c.id).scalar_subquery(), select(spec.c.revision).scalar_subquery()
    claimed = _claim(*one, SANDBOX.c).cte("claimed")
    found = select(*claimed.c, *spec.c).where(spec.c.id == claimed.c.spec_id)
    recorded = found.add_cte(sandbox_status.insert_claim(claimed).cte("moved"))
    return with_entry(recorded, claimed, claimed.c.status, claimed.c.created_at)


def _wanted_spec() -> CTE:
    """The spec, if it has a pool and no max age.

    The spec is not locked, so a claim never waits for a change of it. A change of its deadlines locks its warm
    sandboxes, and a warm sandbox of an older revision is not claimed.
    """
    first = select(SPEC.c.id).order_by(SPEC.c.position, SPEC.c.id).limit(1).scalar_subquery()
    default = case((_names_with_escapes(), null()), else_=first)
    is_ageless = or_(_parameter("is_ageless"), SPEC.c.max_age_seconds.is_(None))
    wanted = SPEC.c.id == func.coalesce(_parameter("spec_id"), _preferred(), default)
    return select(SPEC).where(wanted, SPEC.c.warm_most > 0, is_ageless).cte("spec")


def _preferred() -> ColumnElement[Any]:
    """The spec that the owner's settings name, if it exists.

    Settings are stored as a text that `Json` writes: PostgreSQL's own JSON would reject some of them.
    """
    named = literal(NAMES_SPEC).concat(SPEC.c.id).concat(literal('"'))
    is_named = func.strpos(SETTINGS.c.document, named, type_=Integer()) > 0
    found = select(SPEC.c.id).join(SETTINGS, SETTINGS.c.user_id == _parameter("owner_id")).where(is_named)
    return found.limit(1).correlate(None).scalar_subquery()


def _names_with_escapes() -> ColumnElement[bool]:
    """Whether the owner's settings name a spec whose id JSON writes with escapes. Such a claim is left to `start`."""
    value = func.split_part(func.split_part(SETTINGS.c.document, NAMES_SPEC, 2), '"', 1)
    escaped = func.strpos(value, "\\", type_=Integer()) > 0
    return select(literal(1)).where(SETTINGS.c.user_id == _parameter("owner_id"), escaped).correlate(None).exists()


REVISION = select(SPEC.c.revision).where(SPEC.c.id == _parameter("spec_id")).scalar_subquery()
IN_TRANSACTION = _claim(_parameter("spec_id"), REVISION, (SANDBOX.c.id,))
WITH_ENTRY = _claim_with_entry()
