"""The choice of tests that also run on PostgreSQL for a change: enough to send every statement to it.

Tests of the database, of locks, of overlapping transactions and of deployment run on both databases (`BOTH`). The
others differ between databases only by the statements that they send. A test that sends no statement of its own runs on
SQLite, and on PostgreSQL at night. To record the statements of a run's tests:

    pytest -m unit --database postgresql -p tests.stages.statements --statements DIRECTORY

`python -m tests.stages.statements DIRECTORY` chooses from the tests of a change and keeps the choice. With `--add`, it
keeps the earlier choice and chooses from newer modules only; then a record of the tests of a change suffices, with
`-k postgresql` instead of the option above. With `--check`, it prints the statements that the kept choice leaves out,
also for the nightly tests, which send more.
"""

import argparse
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.kinds import DATABASE_PARAMETER

KEPT = Path(__file__).with_name("postgresql.json")
BOTH = (
    "tests/shared/backup/",
    "tests/shared/changes/",
    "tests/shared/db/",
    "tests/shared/leasing/",
    "tests/shared/sql/",
    "tests/shared/test_clock",
    "tests/shared/warm_pool/",
    "tests/deploy/",
    "tests/worker/locks/",
    # Tests of overlapping transactions.
    "tests/api/routes/v1/test_concurrent_deletions",
    "tests/api/test_crowded_rows",
    "tests/api/test_crowded_threads",
    "tests/api/test_locked_rows",
    "tests/shared/cli/test_migrate",
    "tests/shared/conversations/test_concurrent_deletions",
    "tests/shared/conversations/test_events",
    "tests/shared/conversations/test_sandbox_grouping",
    "tests/shared/conversations/test_quotas",
    "tests/shared/nodes/test_lost_nodes",
    "tests/shared/nodes/test_pending_placement",
    "tests/shared/sandboxes/deadlines/test_dates",
    "tests/shared/sandboxes/deadlines/test_overlap",
    "tests/shared/sandboxes/test_access",
    "tests/shared/sandboxes/test_concurrent_desired_states",
    "tests/shared/sandboxes/test_desired_state",
    "tests/shared/sandboxes/test_quotas",
    "tests/shared/users/test_settings",
    "tests/worker/conversations/message_delivery/test_concurrent_resumes",
    "tests/worker/loops/test_reserved_connections",
    "tests/worker/network/test_concurrent_admission",
    # Tests of values that PostgreSQL does not store, and of its errors.
    "tests/api/test_full_disk",
    "tests/api/test_unpaired_surrogates",
    "tests/worker/test_failed_writes",
)
# Statements are equal if they differ only in the numbers of parameters and the lengths of lists.
PARAMETER = re.compile(r"%\((\w+?)(_\d+)*\)s")
LIST = re.compile(r"\((%s(::[A-Za-z ]+(\[\])?)?(, )?)+\)(, \((%s(::[A-Za-z ]+(\[\])?)?(, )?)+\))*")
NUMBER = re.compile(r"_\d+\b")
# Statements of the test fixtures, or of every test.
NOT_OURS = ("CREATE DATABASE", "DROP DATABASE", "SAVEPOINT", "RELEASE")

Sent = Mapping[str, set[str]]
Choice = Mapping[str, list[str]]


# --- the plugin -------------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option for the output directory."""
    parser.addoption(
        "--statements", type=Path, required=True, help="the directory for the statements that each process sent"
    )


class Recorder:
    """Records the statements that each test of this process sends to PostgreSQL."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sent: dict[str, set[str]] = defaultdict(set)
        self._test = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Attribute the following statements to this test."""
        self._test = item.nodeid

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Iterator[Any]:
        """Record statements while tests run, and write them at the end."""
        with self._listening():
            result = yield
        self._directory.mkdir(parents=True, exist_ok=True)
        content = {test: sorted(found) for test, found in self._sent.items()}
        (self._directory / f"{os.getpid()}.json").write_text(json.dumps(content))
        return result

    @contextmanager
    def _listening(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("execute", "executemany"):
                patch.setattr(psycopg.Cursor, name, self._noting(getattr(psycopg.Cursor, name)))
            yield

    def _noting(self, send: Any) -> Any:
        def record_and_send(cursor: Any, query: Any, *arguments: Any, **options: Any) -> Any:
            if isinstance(query, str) and not query.startswith(NOT_OURS):
                self._sent[self._test].add(normalize(query))
            return send(cursor, query, *arguments, **options)

        return record_and_send


def pytest_configure(config: pytest.Config) -> None:
    """Register the recorder in each process that runs tests."""
    config.pluginmanager.register(Recorder(config.option.statements), "statements-recorder")


def normalize(statement: str) -> str:
    """The statement without the parts that vary between executions."""
    return NUMBER.sub("", LIST.sub("(…)", PARAMETER.sub("%s", statement)))


# --- the choice -------------------------------------------------------------------------------------------------------


def read_sent(directory: Path) -> Sent:
    """The statements of a run's tests, by the names of the tests without the database."""
    found: dict[str, set[str]] = defaultdict(set)
    for file in directory.glob("*.json"):
        for test, statements in json.loads(file.read_text()).items():
            if DATABASE_PARAMETER.search(test):
                found[DATABASE_PARAMETER.sub("", test)].update(statements)
    return found


def choose(sent: Sent, kept: Choice | None = None) -> Choice:
    """Choose the tests of each module above the store that run on PostgreSQL for a change; most modules have none.

    Args:
        sent: the statements of each test.
        kept: an earlier choice, to which tests are added.
    """
    choice: dict[str, list[str]] = {_module(test): [] for test in sorted(sent) if not test.startswith(BOTH)}
    choice |= {module: list(names) for module, names in (kept or {}).items()}
    missing = missed(sent, choice)
    while missing:
        test = max(sorted(sent), key=lambda name: len(sent[name] & missing))
        choice[_module(test)].append(test.partition("::")[2])
        missing -= sent[test]
    return choice


def missed(sent: Sent, choice: Choice) -> set[str]:
    """The statements that no test of the choice sends to PostgreSQL."""
    runs = (statements for test, statements in sent.items() if runs_on_postgresql(test, choice))
    return set().union(*sent.values()) - set().union(*runs)


def runs_on_postgresql(test: str, choice: Choice) -> bool:
    """Whether a test runs on both databases for a change. Tests of modules newer than the choice do."""
    module, _, name = test.partition("::")
    return test.startswith(BOTH) or module not in choice or name in choice[module]


@cache
def read_choice() -> Choice:
    """Read the kept choice."""
    found: Choice = json.loads(KEPT.read_text())
    return found


def print_line(text: str) -> None:
    """Print a line."""
    print(text)  # noqa: T201 - the terminal is its page


def _module(test: str) -> str:
    return test.partition("::")[0]


def main(arguments: Iterable[str]) -> int:
    """Keep a new choice, or check the kept one; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.stages.statements", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--add", action="store_true", help="keep the earlier choice, and add tests of newer modules")
    parser.add_argument("--check", action="store_true", help="print the statements that the kept choice leaves out")
    options = parser.parse_args(list(arguments))
    sent = read_sent(options.directory)
    if not sent:
        raise SystemExit(f"nothing was recorded in {options.directory}")
    if not options.check:
        choice = choose(sent, read_choice() if options.add else None)
        KEPT.write_text(json.dumps(choice, indent=1, ensure_ascii=False, sort_keys=True) + "\n")
        read_choice.cache_clear()
    missing = missed(sent, read_choice())
    total = len(set().union(*sent.values()))
    print_line(
        "\n".join([f"{len(missing)} of {total} statements are sent to PostgreSQL at night only", *sorted(missing)])
    )
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
