"""PostgreSQL: dump and load with its own `pg_dump` and `pg_restore`, of a version that fits the server's."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL, make_url

from shared.db import unfinished_restore
from shared.db.migrations import connected
from shared.errors import Invalid

FILE = "store.dump"
# Where Debian installs the programs of each version.
VERSIONS = Path("/usr/lib/postgresql")
# The first version whose programs set `transaction_timeout`: an older server restores none of their dumps.
NEW_TIMEOUT = 17
# What the role of another server may not write: owners, rights, and the comments of extensions that an administrator
# has created.
WITHOUT_RIGHTS = ("--no-owner", "--no-acl", "--no-comments")

# The secrets that libpq reads from no variable, and the name of the service that has them.
SECRETS = ("sslpassword", "scram_client_key", "scram_server_key", "oauth_client_secret")
SERVICE = "agent-workspace"


def dump(database_url: str, path: Path) -> None:
    """Write the database as of one moment into an empty file, in PostgreSQL's custom format. It blocks no writer.

    Raises:
        Invalid: there is no `pg_dump` that fits the server, or it failed.
    """
    without_mark = f"--exclude-table={unfinished_restore.TABLE}"
    _run(database_url, "pg_dump", "--format=custom", *WITHOUT_RIGHTS, without_mark, f"--file={path}")


def load(path: Path, database_url: str, digest: str) -> None:
    """Mark an empty database as unfinished, and restore a dump into it in one transaction.

    Raises:
        Invalid: there is no `pg_restore` that fits the server, or it failed.
    """
    unfinished_restore.mark(database_url, digest)
    _run(database_url, "pg_restore", "--single-transaction", "--exit-on-error", *WITHOUT_RIGHTS, str(path))


def _run(database_url: str, name: str, *arguments: str) -> None:
    url = make_url(database_url)
    program = _find(name, _server_version(database_url))
    password = str(url.password or url.query.get("password", ""))
    command = [str(program), f"--dbname={_address(url)}", *arguments]
    # Secrets are in the environment and in memory, which only this user can read, and not in the arguments.
    with _service_file(url) as file:
        variables = {"PGPASSWORD": password, "PGSERVICEFILE": f"/proc/self/fd/{file}"}
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", **variables}
        done = subprocess.run(  # noqa: S603
            command, env=environment, pass_fds=(file,), capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise Invalid(f"{program} failed: {' '.join(done.stderr.split())[-500:]}")


def _address(url: URL) -> str:
    address = URL.create("postgresql", url.username, None, url.host, url.port, url.database, url.query)
    shown = address.difference_update_query(["password", *SECRETS])
    return (shown.update_query_dict({"service": SERVICE}) if _secrets(url) else shown).render_as_string()


@contextmanager
def _service_file(url: URL) -> Iterator[int]:
    """A file in memory, from which libpq reads the secrets of a URL."""
    with os.fdopen(os.memfd_create(SERVICE), "w+") as file:
        file.writelines([f"[{SERVICE}]\n", *(f"{name}={value}\n" for name, value in _secrets(url).items())])
        file.flush()
        yield file.fileno()


def _secrets(url: URL) -> dict[str, str]:
    return {name: str(url.query[name]) for name in SECRETS if name in url.query}


def _server_version(database_url: str) -> int:
    with connected(database_url) as connection:
        return int(connection.exec_driver_sql("SHOW server_version_num").scalar_one()) // 10000


def _find(name: str, server: int) -> Path:
    found = {version: path for path in _candidates(name) if _fits(version := _version(path), server)}
    if not found:
        newer = "or newer" if server >= NEW_TIMEOUT else f"or newer, but older than {NEW_TIMEOUT},"
        raise Invalid(
            f"{name} {server} {newer} is missing: install postgresql-client-{server}, or run {name} where it is, as "
            "docs/operate/backup.md says"
        )
    # The oldest one dumps and the newest one restores: a program can't read the dumps of a newer one.
    return found[min(found) if name == "pg_dump" else max(found)]


def _fits(program: int, server: int) -> bool:
    """Whether a program of that version can read the server, and the server can restore what the program writes."""
    return program >= server and (program < NEW_TIMEOUT or server >= NEW_TIMEOUT)


def _candidates(name: str) -> list[Path]:
    paths = [*VERSIONS.glob(f"*/bin/{name}")]
    return [*paths, Path(first)] if (first := shutil.which(name)) else paths


def _version(program: Path) -> int:
    text = subprocess.run([str(program), "--version"], capture_output=True, text=True, check=False).stdout  # noqa: S603
    found = re.search(r"\) (\d+)", text)
    return int(found[1]) if found else 0
