"""Keyset pagination: pages stay consistent during inserts and deletes, and cost the same at any depth."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any, Generic, TypeVar

from sqlalchemy import ColumnElement, Integer, Row, func, tuple_
from sqlmodel import Session

from shared.errors import Invalid, TooLarge
from shared.models.columns import UtcDateTime
from shared.sql import page_ids
from shared.sql.page_ids import FOREIGN_PAGE

# Max bytes of documents in one response, which is built in memory.
MAX_PAGE_BYTES = 8 * 1024 * 1024

Item = TypeVar("Item")


@dataclass(frozen=True)
class Page(Generic[Item]):
    """Some rows, and the opaque id of the next page; None on the last page."""

    items: list[Item]
    next_page_id: str | None


@dataclass(frozen=True)
class Order:
    """A sort order: a column, the row id that breaks ties, and a direction.

    Args:
        of: the owner of the list, if each owner has such a list: page ids of another owner's list are rejected.
    """

    column: Any
    tie: Any
    descending: bool = False
    of: str = ""

    @property
    def name(self) -> list[Any]:
        """The identity of the list in its page ids."""
        column = f"{self.column.class_.__tablename__}.{self.column.key}"
        return [column, self.descending, self.of] if self.of else [column, self.descending]

    @property
    def directed(self) -> list[Any]:
        """The columns to sort by, each with its direction."""
        return [column.desc() if self.descending else column.asc() for column in (self.column, self.tie)]

    def beyond(self, value: Any, tie: Any) -> ColumnElement[bool]:
        """Build the condition for the rows after one with these values, or with those of these bind parameters."""
        # Compared as a tuple: the database would evaluate an OR on every row of the previous pages.
        key, last = tuple_(self.column, self.tie), tuple_(value, tie)
        return key < last if self.descending else key > last


def read_page(session: Session, statement: Any, order: Order, page_id: str | None, limit: int) -> Page[Any]:
    """One page of the statement's rows, whose last two columns or attributes are the order's.

    Raises:
        Invalid: the page id is not from this list.
    """
    rows = list(session.exec(put_in_order(statement, order, page_id).limit(limit + 1)).all())
    more = len(rows) > limit
    return Page(rows[:limit], _id_after(rows[limit - 1], order) if more else None)


def read_bounded_page(
    session: Session, statement: Any, sizes: Any, order: Order, page_id: str | None, limit: int
) -> Page[Any]:
    """A page of at most `MAX_PAGE_BYTES`, but of at least one row.

    Args:
        sizes: a SELECT of the sizes, in bytes, of the same rows.

    Raises:
        Invalid: the page id is not from this list.
    """
    row_bytes = session.exec(put_in_order(sizes, order, page_id).limit(limit))
    fitting = sum(total <= MAX_PAGE_BYTES for total in accumulate(row_bytes))
    return read_page(session, statement, order, page_id, min(limit, max(1, fitting)))


def check_batch(sizes: Sequence[int], what: str) -> None:
    """Reject a batch of documents that is too large for one response.

    Raises:
        TooLarge: there is more than one, with more than `MAX_PAGE_BYTES` in total.
    """
    if len(sizes) > 1 and sum(sizes) > MAX_PAGE_BYTES:
        raise TooLarge(f"these {what} have {sum(sizes)} bytes, more than {MAX_PAGE_BYTES}: request fewer at a time")


def measure(session: Session, column: Any) -> Any:
    """The size of a stored document in bytes. It is ASCII, but counting characters makes PostgreSQL read it."""
    return (func.octet_length if session.get_bind().dialect.name == "postgresql" else func.length)(column)


def put_in_order(statement: Any, order: Order, page_id: str | None) -> Any:
    """The statement, sorted and starting at the page.

    Raises:
        Invalid: the page id is not from this list.
    """
    if page_id is not None:
        statement = statement.where(order.beyond(*decode_page_id(page_id, order)))
    return statement.order_by(*order.directed)


def encode_page_id(order: Order, value: Any, tie: Any) -> str:
    """The id of the page after a row with these values in the order's columns."""
    return page_ids.encode(order.name, value.isoformat() if isinstance(value, datetime) else value, tie)


def decode_page_id(page_id: str, order: Order) -> tuple[Any, Any]:
    """The values in the order's columns of the previous page's last row.

    Raises:
        Invalid: the page id is not from this list.
    """
    value, tie = page_ids.decode(page_id, order.name, 2)
    try:
        return _read(order.column, value), _read(order.tie, tie)
    except (ValueError, TypeError, OverflowError):
        raise Invalid(FOREIGN_PAGE) from None


def _id_after(row: Any, order: Order) -> str:
    row = row[0] if isinstance(row, Row) else row
    return encode_page_id(order, getattr(row, order.column.key or ""), getattr(row, order.tie.key or ""))


def _read(column: Any, value: Any) -> Any:
    """A value of the column's type that every database can compare with."""
    if isinstance(column.type, UtcDateTime):
        return _read_time(value)
    if isinstance(column.type, Integer):
        return _read_integer(value)
    if not isinstance(value, str) or "\0" in value:
        raise ValueError("not a text of a page id")
    value.encode()  # half a surrogate pair cannot be encoded
    return value


def _read_time(value: Any) -> datetime:
    time = datetime.fromisoformat(value)
    if time.tzinfo is None:
        raise ValueError("a naive time")
    return time.astimezone(UTC)


def _read_integer(value: Any) -> int:
    if type(value) is not int or not -(2**63) <= value < 2**63:
        raise ValueError("not an integer of a page id")
    return value


def page_of_names(kind: str, names: Sequence[str], page_id: str | None, limit: int) -> tuple[list[str], str | None]:
    """One page of sorted names, and the id of the next page.

    Args:
        kind: the identity of the list. Page ids of another list are rejected.

    Raises:
        Invalid: the page id is not from this list.
    """
    [last] = [""] if page_id is None else page_ids.decode(page_id, [kind], 1)
    if not isinstance(last, str):
        raise Invalid(FOREIGN_PAGE)
    rest = [name for name in names if name > last]
    return rest[:limit], page_ids.encode([kind], rest[limit - 1]) if len(rest) > limit else None
