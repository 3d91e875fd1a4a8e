"""Snapshots of what an operation has left behind, in a form that is equal for two runs of the same operation."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from typing import Any

from sqlmodel import SQLModel, select

from shared.queue.jobs import queues_of
from tests.drills.engine_listing import list_holdings
from tests.drills.faults.runner import Runner
from tests.drills.faults.tables import FILLED
from tests.services.valkey import Valkey

# Longer texts, and greater numbers, are ids, addresses, keys or ciphertexts, which differ between two runs.
MAX_WORD, MAX_COUNT = 24, 1000
# Numbers of rows in order of their insertion, and durations of phases, which name what one run did before it died.
LEFT_OUT = {"id", "position", "phases"}

Snapshot = Mapping[str, Counter[Any]]


def take_snapshot(runner: Runner, broker: Valkey) -> Snapshot:
    """The rows, containers, volumes and waiting messages of a runner's installation."""
    found = {table.__tablename__: Counter(_rows(runner, table)) for table in FILLED}
    held = list_holdings(runner.engine)
    mine = runner.service.installation
    found["containers"] = Counter(each.state for each in held.containers if mine in each.labels.values())
    found["volumes"] = Counter(volumes=sum(mine in each.labels.values() for each in held.volumes))
    with broker.client() as client:
        lengths = {queue: client.llen(f"aw:{queue}") for queue in queues_of(runner.service.environment["AW_NODE"])}
    found["messages"] = Counter(lengths)
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
        case str() if len(value) <= MAX_WORD and not any(map(str.isdigit, value)):
            return value
        case datetime() | int() | float() | str():
            return type(value).__name__
    raise TypeError(type(value))
