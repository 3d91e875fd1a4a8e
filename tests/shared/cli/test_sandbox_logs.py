"""`sandboxes logs --local`: the kept logs of any user's sandbox, from the database."""

import json

from shared.clock import after
from shared.container_logs import kept_logs
from shared.container_logs.kept_logs import LogCause
from shared.db.database import Database
from shared.models import Sandbox, SandboxLog
from shared.states import Desired, Status
from tests.factories import ApiUser, make_sandbox
from tests.shared.cli.results import Cli, assert_complains


def keep(database: Database, sandbox: Sandbox) -> None:
    with database.transaction() as session:
        text = "2026-01-01T00:00:00.000000001Z one\n2026-01-01T00:00:00.000000002Z two \x1b[31m\n"
        log = SandboxLog(sandbox_id=sandbox.id, owner_id="u", container_id="c" * 64, text=text, expires_at=after(60))
        log.cause = LogCause.REMOVED
        kept_logs.keep(session, log)


def test_kept_log_is_printed(migrated: Cli, database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user, status=Status.DELETED, desired=Desired.DELETED)
    keep(database, sandbox)
    response = migrated("sandboxes", "logs", sandbox.id, "--local")
    assert (response.status, response.out) == (0, "one\ntwo \ufffd[31m\n")
    container, note = response.err.splitlines()
    assert container == "--- container cccccccccccc, removed"
    assert note.startswith("--- the sandbox is deleted: this is its log as it was kept at 20")
    tail = migrated("sandboxes", "logs", sandbox.id, "--local", "--tail", "1", "-t")
    assert tail.out == "2026-01-01T00:00:00.000000002Z two \ufffd[31m\n"
    assert "earlier lines are missing" in tail.err


def test_lines_are_printed_as_json(migrated: Cli, database: Database, user: ApiUser) -> None:
    sandbox = make_sandbox(database, user)
    keep(database, sandbox)
    lines = [
        json.loads(line) for line in migrated("sandboxes", "logs", sandbox.id, "--local", "--json").out.splitlines()
    ]
    assert lines[0] == {"at": "2026-01-01T00:00:00.000000001Z", "text": "one", "container_id": "c" * 64}


def test_sandbox_without_a_log_has_empty_output(migrated: Cli, database: Database, user: ApiUser) -> None:
    response = migrated("sandboxes", "logs", make_sandbox(database, user).id, "--local")
    assert (response.status, response.out) == (0, "")
    assert response.err == "--- the log is not live: no log of it is kept\n"


def test_wrong_arguments_are_refused(migrated: Cli) -> None:
    assert_complains(migrated("sandboxes", "logs", "0" * 32, "--local"), "0" * 32, status=3)
    assert_complains(migrated("sandboxes", "logs", "x", "--local"), "not an id")
    assert migrated("sandboxes", "logs", "0" * 32, "--local", "--follow").status == 2
