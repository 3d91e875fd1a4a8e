"""Lists of a user's sandboxes, paged."""

from sqlalchemy import bindparam, join, literal_column
from sqlmodel import col

from shared.db.database import Database
from shared.db.json_rows import TextList
from shared.models import Sandbox, SandboxSpec
from shared.sandboxes.deadlines import FIELDS, Durations, combine
from shared.sql.pagination import Order, Page

NEWEST_FIRST = Order(col(Sandbox.created_at), col(Sandbox.id), descending=True)
SHOWN = (
    *(
        "id",
        "owner_id",
        "spec_id",
        "status",
        "session_key",
        "exposed_urls",
        "created_at",
        "desired",
        "reason",
        "detail",
    ),
    *("pause_kind", "updated_at", "last_active_at", "expires_at", "deadline_at", "deadline_does", *FIELDS),
)


def search(database: Database, owner_id: str, page_id: str | None, limit: int, status: str | None = None) -> Page[str]:
    """Read a page of the owner's sandboxes, newest first, each as a text for `read_text`.

    Args:
        status: list only sandboxes of this status; None lists all.

    Raises:
        Invalid: the page id was not made by this service.
    """
    return _LIST.page(database, {"owner_id": owner_id, "status": status}, NEWEST_FIRST, page_id, limit)


def read_text(text: str) -> tuple[Sandbox, Durations]:
    """Parse the shown columns of a sandbox, and its deadlines in force."""
    values = _LIST.read(text)
    own = dict(zip(SHOWN, values, strict=False))
    of_spec = dict(zip(FIELDS, values[len(SHOWN) :], strict=True))
    return Sandbox(**own), combine(own, of_spec)


_LIST = TextList(
    columns=(*(getattr(Sandbox, name) for name in SHOWN), *(getattr(SandboxSpec, name) for name in FIELDS)),
    model=Sandbox,
    shown_from=join(Sandbox, SandboxSpec, col(SandboxSpec.id) == col(Sandbox.spec_id)),
    # Spelled as in the index's condition: with a parameter, the database could not use the index.
    always=(col(Sandbox.owner_id) == bindparam("owner_id"), col(Sandbox.desired) != literal_column("'DELETED'")),
    filters={"status": col(Sandbox.status) == bindparam("status")},
)
