"""PostgreSQL and Valkey with passwords on a machine of the cluster, at addresses that the other machines reach."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from shared.queue.embedded_broker import server_command
from tests.cluster.machines import Machine
from tests.services import processes
from tests.services.directories import short_directory
from tests.services.postgres import Postgres, _binary
from tests.waiting import eventually

# Enough for eight processes that are replaced one by one.
MOST_CONNECTIONS = "max_connections=300"


@dataclass(frozen=True)
class Data:
    """The URLs of both servers."""

    database: str
    broker: str


def new_password() -> str:
    """Generate a password for both servers."""
    return secrets.token_hex(24)


@contextmanager
def running_data(machine: Machine, password: str = "") -> Iterator[Data]:
    """Run both servers, empty, for the length of the block, with this password or a new one."""
    password = password or new_password()
    with _postgres(machine, password) as database, _valkey(machine, password) as broker:
        yield Data(database, broker)


@contextmanager
def _postgres(machine: Machine, password: str) -> Iterator[str]:
    user = processes.unprivileged()
    with short_directory("pg", in_memory=True) as directory:
        cluster = Postgres(directory)
        cluster.make()
        with (directory / "data" / "pg_hba.conf").open("a") as file:
            file.write("host all workspace all scram-sha-256\n")
        identity = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--pdeathsig=INT", "--"]
        own = ["-D", str(directory / "data"), "-k", str(directory), "-h", machine.address, "-c", MOST_CONNECTIONS]
        server = [_binary("postgres"), *own]
        running = processes.start([*machine.namespace.command, "setpriv", *identity, *server], directory / "log")
        try:
            eventually(cluster._responds)
            with cluster.connect() as connection:
                connection.execute(f"CREATE ROLE workspace LOGIN PASSWORD '{password}'".encode())
                connection.execute(b"CREATE DATABASE workspace OWNER workspace")
            yield f"postgresql://workspace:{password}@{machine.address}/workspace"
        finally:
            processes.stop(running)


@contextmanager
def _valkey(machine: Machine, password: str) -> Iterator[str]:
    with short_directory("valkey") as directory:
        options = ["--port", "6379", "--bind", machine.address, "--requirepass", password]
        command = [*server_command(directory / "socket", directory), *options]
        running = processes.start([*machine.namespace.command, *command], directory / "log")
        try:
            eventually((directory / "socket").exists)
            yield f"redis://:{password}@{machine.address}:6379/0"
        finally:
            processes.stop(running)
