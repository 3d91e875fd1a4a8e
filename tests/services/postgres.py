"""A real PostgreSQL server for tests, with a socket in its own directory and without durable writes."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import psycopg

from tests.services import processes
from tests.services.directories import short_directory
from tests.waiting import eventually

USER = "aw"
# Sort by bytes, which is fast, and map the case of all scripts, as most servers do.
LOCALE = ("--locale=C", "--lc-ctype=C.UTF-8")
# Fast and not durable: no data must survive.
OPTIONS = (
    "listen_addresses=",
    "fsync=off",
    "synchronous_commit=off",
    "full_page_writes=off",
    "autovacuum=off",
    "max_connections=200",
    "shared_buffers=32MB",
    "max_wal_size=256MB",
)


class Postgres:
    """A server, whose databases are created and dropped by name."""

    def __init__(self, directory: Path, *options: str) -> None:
        self._directory = directory
        self._options = [*OPTIONS, *options]
        self._user = processes.unprivileged()
        self._server: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        """Create the cluster's directory."""
        os.chown(self._directory, self._user.pw_uid, self._user.pw_gid)
        cluster = ["-D", self._data, "-U", USER, "-A", "trust", "-E", "UTF8", *LOCALE, "--no-sync"]
        processes.run([_binary("initdb"), *cluster], self._user)

    def start(self) -> None:
        """Start the server, unless it runs, and wait until it responds."""
        if self._server is not None:
            return
        options = [word for option in self._options for word in ("-c", option)]
        command = [_binary("postgres"), "-D", self._data, "-k", str(self._directory), *options]
        self._server = processes.start(command, self._directory / "log", self._user)
        eventually(self._responds)

    def stop(self) -> None:
        """Shut down the server, even if clients are connected."""
        if self._server is not None:
            processes.stop(self._server)
            self._server = None

    def crash(self) -> None:
        """Stop the server without a shutdown; it recovers at its next start."""
        if self._server is not None:
            self._server.send_signal(signal.SIGQUIT)
            self._server.wait()
            self._server = None

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Suspend every process of the server for the length of the block; connections stay open without responses."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._server is not None:
            parent = self._server.pid
            children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
            for pid in (parent, *map(int, children)):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    @property
    def _data(self) -> str:
        return str(self._directory / "data")

    @property
    def socket(self) -> Path:
        """The server's socket."""
        return self._directory / ".s.PGSQL.5432"

    def url(self, name: str) -> str:
        """The SQLAlchemy URL of a database."""
        return f"postgresql+psycopg://{USER}@/{name}?host={quote(str(self._directory), safe='')}"

    def create(self, template: str = "template1") -> str:
        """Create a database from a template, which must have no connections; return its name."""
        name = f"test_{uuid4().hex}"
        self._execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        return name

    def drop(self, name: str) -> None:
        """Drop a database, and close the connections to it."""
        self._execute(f"DROP DATABASE {name} WITH (FORCE)")

    def connect(self, name: str = "postgres") -> psycopg.Connection:
        """Connect to a database as the superuser, with autocommit."""
        return psycopg.connect(host=str(self._directory), user=USER, dbname=name, autocommit=True)

    def _execute(self, statement: str) -> None:
        with self.connect() as connection:
            connection.execute(statement.encode())

    def _responds(self) -> bool:
        if self._server is not None and self._server.poll() is not None:
            raise RuntimeError(f"PostgreSQL did not start: {(self._directory / 'log').read_text()}")
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True


@contextmanager
def running_postgres(*options: str, durable: bool = False) -> Iterator[Postgres]:
    """Run a server for the length of the block; then remove its files.

    Args:
        options: settings, as in the configuration file.
        durable: on a disk, as in production.
    """
    with short_directory("pg", in_memory=not durable) as directory:
        server = Postgres(directory, *options)
        try:
            server.make()
            server.start()
            yield server
        finally:
            server.stop()


def _binary(name: str) -> str:
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=_version)
    found = str(installed[-1]) if installed else shutil.which(name)
    if found is None:
        raise RuntimeError(f"PostgreSQL's {name} is not installed: apt-get install postgresql")
    return found


def _version(binary: Path) -> float:
    return float(binary.parts[-3])
