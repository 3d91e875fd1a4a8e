"""Checks of an installation's parts that every process needs: keys, database, clock, broker, ports."""

import re
import socket
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import redis
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlmodel import Session

from shared import clock
from shared.cli.checks.finding import Finding
from shared.cli.local.installation import LocalInstallation
from shared.db.migrations import Schema, read_schema
from shared.errors import WorkspaceError
from shared.nodes import registry as node_registry
from shared.nodes.placement import is_silent
from shared.settings import Settings

# The oldest versions that the tests run with.
OLDEST_POSTGRESQL, OLDEST_REDIS = 15, 7
SECONDS = 5.0
MIGRATE = "run `agent-workspace db migrate`"
OK, OVERLOADED = b"200", b"503"
# Bytes of a status line that are read.
MAX_LINE = 200
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


def check_installation(settings: Settings) -> Iterator[Finding]:
    """Check everything but the engine."""
    yield _check_secret_key(settings)
    yield from _check_database(LocalInstallation(settings))
    yield _check_broker(settings)
    yield _check_port("port of the API", settings.host, settings.port, "AW_PORT")
    if settings.client_port:
        yield _check_port("client port", settings.host, settings.client_port, "AW_CLIENT_PORT")


def _check_secret_key(settings: Settings) -> Finding:
    name, file, is_in_file = "secret key", settings.secret_key_file, not settings.secret_keys.get_secret_value()
    if is_in_file and _is_missing(file):
        return Finding(name, f"there is no {file}, and AW_SECRET_KEYS is not set", f"restore its backup, or {MIGRATE}")
    try:
        LocalInstallation(settings).vault()
    except WorkspaceError as error:
        return Finding(name, str(error), "restore the right file, readable by this user; or set AW_SECRET_KEYS")
    if is_in_file and file.stat().st_mode & stat.S_IRWXO:
        return Finding(name, f"every user of this machine can read {file}", f"`chmod o= {file}`")
    return Finding(name, found="valid")


def _is_missing(file: Path) -> bool:
    with suppress(OSError):  # of a folder that this user cannot enter: the vault's error names it
        return not file.exists()
    return False


def _check_database(installation: LocalInstallation) -> Iterator[Finding]:
    try:
        with installation.reading() as session:
            yield _check_version(session)
            schema = read_schema(session.connection())
            yield _check_schema(schema)
            yield _check_clock()
            if schema.is_current or schema.is_newer:
                yield from _check_nodes(session)
    except (WorkspaceError, SQLAlchemyError, OSError) as error:
        cause = " ".join(str(getattr(error, "orig", None) or error).split())
        yield Finding("database", cause, "start it, or correct AW_DATABASE_URL; `agent-workspace settings show`")


def _check_version(session: Session) -> Finding:
    if session.get_bind().dialect.name == "sqlite":
        return Finding("database", found="SQLite")
    version = str(session.connection().execute(text("SHOW server_version")).scalar_one())
    is_old = major(version) < OLDEST_POSTGRESQL
    problem = f"PostgreSQL {version} is older than any that was tested" if is_old else None
    return Finding("database", problem, f"use PostgreSQL {OLDEST_POSTGRESQL} or later", f"PostgreSQL {version}")


def _check_schema(schema: Schema) -> Finding:
    is_usable = schema.is_current or schema.is_newer
    problem = None if is_usable else f"it is {schema.found}, and this version needs {schema.needed}"
    return Finding("schema", problem, MIGRATE, f"{schema.found}{', of a newer version' if schema.is_newer else ''}")


def _check_clock() -> Finding:
    error = clock.machine_error()
    problem = f"it differs from the database's by {error.total_seconds():+.1f} s" if error else None
    return Finding("clock", problem, "synchronize it, for example with NTP", "agrees with the database's")


def _check_nodes(session: Session) -> Iterator[Finding]:
    nodes = [node for node in node_registry.list_nodes(session) if node.forgotten_at is None]
    if not nodes:
        yield Finding("nodes", "no worker has ever reported", "start a worker, and read its log")
    for node in nodes:
        silent = "its worker is silent" if is_silent(node.heartbeat_at) else None
        problem = node.detail or node.closed_reason or silent or node.impaired_reason
        yield Finding(f"node {node.id}", problem, "read the log of its worker", node.status)


def _check_broker(settings: Settings) -> Finding:
    url = settings.broker.replace("redis+socket://", "unix://", 1)
    url = f"unix:///{url.removeprefix('unix:///')}" if url.startswith("unix:") else url
    try:
        with redis.Redis.from_url(url, socket_timeout=SECONDS, socket_connect_timeout=SECONDS, protocol=2) as client:
            version = _read_version(client)
    except (redis.RedisError, OSError, ValueError) as error:
        return Finding(
            "broker", str(error) or type(error).__name__, "start the service or the broker, or correct AW_REDIS_URL"
        )
    is_old = major(version) < OLDEST_REDIS
    problem = f"version {version} is older than any that was tested" if is_old else None
    return Finding("broker", problem, f"use Redis {OLDEST_REDIS} or Valkey", f"version {version}")


def _read_version(client: redis.Redis) -> str:
    """The version of a broker, by HELLO: the documented rights of the service's user do not include INFO."""
    found = client.execute_command("HELLO")  # type: ignore[no-untyped-call]
    return str(dict(zip(found[::2], found[1::2], strict=True))[b"version"].decode())


def major(version: str) -> int:
    """The major version of a server, also of an unreleased one such as `17beta1`; 0: it is unknown."""
    found = re.match(r"\d+", version)
    return int(found[0]) if found else 0


def _check_port(name: str, host: str, port: int, variable: str) -> Finding:
    """Check that no program other than this service listens on a port, and that the service responds there."""
    try:
        with socket.create_connection((ANY_ADDRESS.get(host, host), port), timeout=SECONDS) as connection:
            status = _read_status(connection)
    except ConnectionRefusedError:
        return Finding(name, found=f"{port}, free: the service is not running")
    except OSError as error:
        return Finding(name, f"{host}:{port}: {error}", f"correct AW_HOST and {variable}")
    if status is None:
        hung = f"the program that listens on {port} accepts connections but does not respond within {SECONDS:.0f} s"
        return Finding(
            name, hung, "restart it (`ss -ltnp` lists programs); the log of a process of the API may say why"
        )
    if status == OVERLOADED:
        return Finding(
            name, f"{port}, the service is overloaded: its status is 503", "wait, or start more API processes"
        )
    problem = None if status == OK else f"another program listens on {port}"
    return Finding(
        name, problem, f"stop it (`ss -ltnp` lists programs), or set {variable}", f"{port}, the service responds"
    )


def _read_status(connection: socket.socket) -> bytes | None:
    """The status of the response to a request for `/health`; empty: it is not HTTP; None: there is none in time."""
    connection.settimeout(SECONDS)
    try:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: doctor\r\nConnection: close\r\n\r\n")
        with connection.makefile("rb") as response:
            version, _, rest = response.readline(MAX_LINE).partition(b" ")
    except TimeoutError:
        return None
    return rest[:3] if version == b"HTTP/1.1" else b""
