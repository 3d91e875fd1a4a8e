"""The exit statuses of all commands, and the line that is printed for an error."""

import re
import sys
from collections.abc import Sequence
from typing import NoReturn

from shared.cli.output import cell_text
from shared.errors import Forbidden, NotFound, Unauthenticated, WorkspaceError
from shared.reasons import more

OK, FAILED, USAGE, NOT_FOUND, UNAUTHORIZED, TIMEOUT = range(6)
INTERRUPTED = 130

# The errors of SQLite and PostgreSQL for tables and columns that only a later migration adds.
OUTDATED = re.compile(r"no such (?:table|column)|(?:relation|column) .* does not exist")
STATUSES: dict[type[Exception], int] = {
    NotFound: NOT_FOUND,
    Unauthenticated: UNAUTHORIZED,
    Forbidden: UNAUTHORIZED,
    TimeoutError: TIMEOUT,
}
MEANINGS = {
    OK: "the command succeeded",
    FAILED: "it failed, and standard error says why; or a check found a problem, or the awaited object is in ERROR",
    USAGE: "wrong usage; or the command needs `--yes`, and there is no terminal for a prompt",
    NOT_FOUND: "the named object does not exist, or is not yours",
    UNAUTHORIZED: "not logged in, or the key is unknown, revoked or expired, or not allowed to do this",
    TIMEOUT: "the wait exceeded `--timeout`; the operation may still complete",
    INTERRUPTED: "interrupted by Ctrl-C, or by Ctrl-D at a prompt",
}


def exit_status(error: Exception) -> int:
    """The status with which a command ends after that error."""
    return next((status for kind, status in STATUSES.items() if isinstance(error, kind)), FAILED)


def fail(error: Exception, name: str) -> NoReturn:
    """Print an error as one line to standard error, and end the process with its status."""
    print(f"{name}: {error_text(error, name)}", file=sys.stderr)  # noqa: T201 - the output of a program
    sys.exit(exit_status(error))


def error_text(error: Exception, name: str) -> str:
    """One line about an error, without values that may be secret, and without characters that control a terminal."""
    return cell_text(_line(error, name))


def _line(error: Exception, name: str) -> str:
    from pydantic import ValidationError

    if isinstance(error, ValidationError):
        # Pydantic's text quotes the values, and a value may be a secret.
        return "; ".join(f"{_variable(entry['loc'])}: {entry['msg']}" for entry in error.errors())
    cause = getattr(error, "orig", None) or error  # SQLAlchemy adds the statement and its parameters
    text = " ".join(str(cause).split()) or type(cause).__name__
    if OUTDATED.search(text):
        hint = more("there-is-no-database-or-its-tables-are-missing-or-old")
        return f"the database schema is missing or outdated: run `{name} db migrate` {hint}"
    expected = cause is not error or isinstance(error, WorkspaceError | OSError | ValueError)
    return text if expected else f"{type(error).__name__}: {text}"


def _variable(location: Sequence[int | str]) -> str:
    name = str(location[0]) if location else "AW"
    return name.upper() if name.lower().startswith("aw") else f"AW_{name}".upper()
