"""Searches for secrets in the texts of processes, engine, broker and database.

A search that finds nothing proves nothing. Each `Place` therefore names an allowed text, which the same search must
find.
"""

import base64
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
from sqlalchemy import make_url, text
from sqlmodel import SQLModel

from shared.db.database import Database
from tests.services.valkey import Valkey


@dataclass(frozen=True)
class Place:
    """The full text of one place, and an allowed text in it, which proves that the search works."""

    name: str
    content: str
    control: str


def assert_hidden(secrets: Mapping[str, str], place: Place) -> None:
    """Fail if the place contains one of the secrets, in clear or in base64, or does not contain the control."""
    assert is_in(place.control, place.content), f"{place.name}: the search does not find {place.control!r}"
    found = [name for name, secret in secrets.items() if is_in(secret, place.content)]
    assert not found, f"{place.name} contains: {found}"


def is_in(wanted: str, content: str) -> bool:
    return any(form in content for form in (wanted, *in_base64(wanted)))


def in_base64(wanted: str) -> list[str]:
    """The part of a text's base64 form that does not depend on its surroundings, for each of the three alignments."""
    forms = []
    for before in range(3):
        encoded = base64.b64encode(bytes(before) + wanted.encode()).decode().rstrip("=")
        first = -(-before * 8 // 6)  # characters with bits of the preceding text
        last = (before + len(wanted)) * 8 // 6
        forms.append(encoded[first:last])
    return forms


@contextmanager
def monitored(valkey: Valkey) -> Iterator[list[str]]:
    """Record the text of every command that the broker receives during the block."""
    seen: list[str] = []
    with valkey.client() as known:
        path = known.connection_pool.connection_kwargs["path"]
    with redis.Redis(unix_socket_path=path, socket_timeout=None) as client, client.monitor() as monitor:
        end = "end-of-the-monitor"

        def watch() -> None:
            for command in monitor.listen():
                seen.append(command["command"])
                if end in command["command"]:
                    return

        thread = threading.Thread(target=watch)
        thread.start()
        try:
            yield seen
        finally:
            with valkey.client() as other:
                other.echo(end)
            thread.join(20)
    assert not thread.is_alive()


def stored_text(database: Database, url: str) -> str:
    """The database at rest: SQLite's files byte by byte, PostgreSQL's rows as text."""
    if url.startswith("sqlite"):
        file = Path(str(make_url(url).database))
        return "".join(path.read_bytes().decode("latin-1") for path in file.parent.glob(f"{file.name}*"))
    rows: list[str] = []
    with database.engine.connect() as connection:
        for table in SQLModel.metadata.sorted_tables:
            rows += connection.execute(text(f'SELECT t::text FROM "{table.name}" t')).scalars().all()
    return "\n".join(rows)


def family(pid: int) -> list[int]:
    """A process and its descendants."""
    parents = {int(path.name): _parent(path) for path in Path("/proc").glob("[0-9]*")}
    found = [pid]
    for ancestor in found:
        found += [child for child, parent in parents.items() if parent == ancestor]
    return found


def environment_of(pid: int) -> str:
    return _read(pid, "environ")


def command_line_of(pid: int) -> str:
    return _read(pid, "cmdline")


def _parent(process: Path) -> int:
    words = _read(int(process.name), "stat").rpartition(")")[2].split()
    return int(words[1]) if words else -1


def _read(pid: int, name: str) -> str:
    """A file of a process; empty: the process has ended."""
    try:
        return (Path("/proc") / str(pid) / name).read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return ""
