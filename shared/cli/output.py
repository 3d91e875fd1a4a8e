"""The output of all commands: tables for people, JSON and ids for programs, and times."""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from enum import Enum
from typing import Annotated, Any

import typer

from shared.cli.options import with_options
from shared.clock import now

NAME = "agent-workspace"
# Fields of the API that are times.
TIME = re.compile(r"(^|_)at$")
# Halves of surrogate pairs: JSON has escapes for them, but no encoding has bytes.
HALVES = re.compile(r"[\ud800-\udfff]")
# These, and all control characters except the line feed, which is the only one in the layout of JSON.
CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Form(Enum):
    """How a command prints what it shows."""

    TEXT = "text"
    JSON = "json"
    IDS = "ids"


_FORM: ContextVar[Form] = ContextVar("form", default=Form.TEXT)


@contextmanager
def _printing(*, as_json: bool, quiet: bool) -> Iterator[None]:
    if as_json and quiet:
        raise typer.BadParameter("--json and --quiet are mutually exclusive")
    token = _FORM.set(Form.JSON if as_json else Form.IDS if quiet else Form.TEXT)
    try:
        yield
    finally:
        _FORM.reset(token)


# For commands that list or show something.
showing = with_options(
    {
        "as_json": (Annotated[bool, typer.Option("--json", help="Print JSON: all fields, times in ISO 8601.")], False),
        "quiet": (Annotated[bool, typer.Option("--quiet", "-q", help="Print ids only, one per line.")], False),
    },
    _printing,
)


def print_table(
    header: Sequence[str],
    rows: Iterable[Iterable[Any]],
    on_terminal: Sequence[str] | None = None,
    objects: Sequence[Any] | None = None,
) -> None:
    """Print a list: a table on a terminal, tab-separated lines elsewhere, or what the command's options choose.

    Args:
        header: the names of the columns. The first one has the ids.
        rows: the cells of the table.
        on_terminal: the columns that a terminal shows; None: all.
        objects: what `--json` prints; None: the rows, with the columns' names.
    """
    cells = [tuple(row) for row in rows]
    match _FORM.get():
        case Form.JSON:
            names = [name.replace(" ", "_") for name in header]
            print_json([dict(zip(names, row, strict=True)) for row in cells] if objects is None else objects)
        case Form.IDS:
            typer.echo("".join(f"{row[0]}\n" for row in cells), nl=False)
        case Form.TEXT:
            _print_text(header, [[cell_text(cell) for cell in row] for row in cells], on_terminal or header)


def print_details(details: Mapping[str, Any], shown: Any = None) -> None:
    """Print one object, a line for each of its fields.

    Args:
        details: names and values; the first one is the id.
        shown: what `--json` prints; None: the details.
    """
    if _FORM.get() is Form.TEXT:
        width = max(map(len, details))
        for name, value in details.items():
            text = cell_text(value).replace("\n", "\n" + " " * (width + 2))
            typer.echo(f"{name.replace('_', ' '):{width}}  {text}".rstrip())
    elif _FORM.get() is Form.IDS:
        typer.echo(next(iter(details.values())))
    else:
        print_json(details if shown is None else shown)


def print_compact_json(value: Any, identifier: Any) -> bool:
    """Print one of many objects as a line of JSON, or its id, if the command's options request that.

    Returns:
        Whether the object was printed; if not, the caller must print it as text.
    """
    match _FORM.get():
        case Form.JSON:
            typer.echo(_json_text(value, None))
        case Form.IDS:
            typer.echo(identifier)
        case Form.TEXT:
            return False
    return True


def print_json(value: Any) -> None:
    """Print JSON for programs."""
    typer.echo(_json_text(value, 2))


def cell_text(value: Any) -> str:
    """A value as a table shows it, without characters that control a terminal: it may come from a sandbox."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return time_text(value) if isinstance(value, datetime) else CONTROLS.sub("\N{REPLACEMENT CHARACTER}", str(value))


def writable(text: str) -> str:
    """A text that can be written to any stream: what comes from a sandbox may have half a surrogate pair."""
    return HALVES.sub("\N{REPLACEMENT CHARACTER}", text)


def read_fields(item: Mapping[str, Any], names: Iterable[str]) -> list[Any]:
    """The values of these fields of an API object. The field `at`, and those whose names end in `_at`, become times."""
    return [
        datetime.fromisoformat(item[name]) if TIME.search(name) and item.get(name) else item.get(name) for name in names
    ]


def time_text(at: datetime | None) -> str:
    """A time to the second, in UTC; empty for None."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}" if at else ""


def age_text(at: datetime) -> str:
    """The time elapsed since `at`."""
    return f"{max(0, round((now() - at).total_seconds()))} s ago"


def _json_text(value: Any, indent: int | None) -> str:
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=_encode)
    return CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _print_text(header: Sequence[str], lines: list[list[str]], on_terminal: Sequence[str]) -> None:
    if not sys.stdout.isatty():
        for line in [list(header), *lines]:
            typer.echo("\t".join(cell.replace("\n", " ") for cell in line))
        return
    from rich.console import Console
    from rich.table import Table

    shown = [header.index(name) for name in on_terminal]
    table = Table(*(header[index] for index in shown), box=None, header_style="bold", pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"  # not "…": what is cut can't be copied
    table.columns[0].no_wrap = True
    for line in lines:
        table.add_row(*(line[index] for index in shown))
    Console(markup=False, highlight=False).print(table)


def _encode(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)
