"""Snapshots of what an operation has left behind, in a form that is equal for two runs of the same operation."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Any

from sqlmodel import SQLModel, select

from tests.drills.engine_listing import list_holdings
from tests.drills.faults.runner import Runner
from tests.drills.faults.statements import is_word
from tests.drills.faults.tables import FILLED

# Greater numbers are ports or identifiers, which differ between two runs.
MAX_COUNT = 1000
# Numbers of rows in order of their insertion, and durations of phases, which name what one run did before it died.
LEFT_OUT = {"id", "position", "phases"}

Snapshot = Mapping[str, Counter[Any]]


def take_snapshot(runner: Runner) -> Snapshot:
    """The rows, containers and volumes of a runner's installation.

    Messages are left out: whether a worker has received or acknowledged one when it dies depends on the moment, and a
    recovery must tolerate both.
    """
    found = {table.__tablename__: Counter(_rows(runner, table)) for table in FILLED}
    held = list_holdings(runner.engine)
    mine = runner.service.installation
    found["containers"] = Counter(each.state for each in held.containers if mine in each.labels.values())
    found["volumes"] = Counter(volumes=sum(mine in each.labels.values() for each in held.volumes))
    return found


def _rows(runner: Runner, table: type[SQLModel]) -> list[Any]:
    with runner.service.database.reading() as session:
        return [_plain(row.model_dump(exclude=LEFT_OUT)) for row in session.exec(select(table)).all()]


def _plain(value: Any) -> Any:
    """The value in a hashable form, or the name of its type if it would differ between two runs."""
    match value:
        case None | bool() | Enum():
            return value
        case dict():
            return tuple((name, _plain(each)) for name, each in sorted(value.items()))
        case list():
            return tuple(map(_plain, value))
        case int() if value < MAX_COUNT:
            return value
        case str() if is_word(value):
            return value
        case datetime() | int() | float() | str():
            return type(value).__name__
    raise TypeError(type(value))
