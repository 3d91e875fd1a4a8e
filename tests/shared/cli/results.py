"""The results of commands, with their files and keys."""

import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shared.crypto import Vault
from shared.db.database import Database
from shared.users import api_keys

COMMAND = str(Path(sys.executable).with_name("agent-workspace"))
# What that program contains.
COMMAND_LINE = "from shared.cli.app import main; main()"


@dataclass(frozen=True)
class Result:
    """The status and the output of a command."""

    status: int
    out: str
    err: str


Cli = Callable[..., Result]


def rows(response: Result, *, status: int = 0) -> list[list[str]]:
    assert response.status == status, response
    return [line.split("\t") for line in response.out.splitlines()[1:]]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def vault_of(var: Path) -> Vault:
    return Vault([(var / "secret.key").read_text().strip()])


def owner(database: Database, var: Path, key: str) -> str | None:
    [holder] = api_keys.authenticate(database, vault_of(var), [key])
    return holder and holder.name


def assert_complains(response: Result, *words: str, status: int = 1) -> None:
    assert response.status == status
    assert response.out == ""
    assert response.err.count("\n") == 1, response.err
    assert "Traceback" not in response.err
    assert all(word in response.err for word in words), response.err
