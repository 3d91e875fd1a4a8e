"""What an engine tells of its containers' changes."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby

from shared.ids import new_id
from tests.fixtures.containers import started
from tests.waiting import eventually
from worker.engine.docker_engine import INSTALLATION_LABEL
from worker.engine.protocol import ContainerRequest, Engine


def test_changes_are_told_in_their_order(
    engine: Engine, another: Engine, request_: ContainerRequest, installation: str
) -> None:
    first, second = request_, replace(request_, name=f"aw-{new_id()}")
    for request in (first, second):
        started(another, request)
        another.stop(request.name, 0)
    with following(engine, installation) as told:
        another.start(first.name)
        another.start(second.name)
        another.freeze(first.name)
        another.stop(second.name, 0)
        another.unfreeze(first.name)
        another.remove(second.name)
        # What happened in the second before may be told, too.
        eventually(lambda: in_turn(told)[-6:] == [first.name, second.name] * 3)


def test_own_starts_and_freezes_are_not_told(
    engine: Engine, another: Engine, request_: ContainerRequest, installation: str
) -> None:
    own, marker = request_, replace(request_, name=f"aw-{new_id()}")
    with following(engine, installation) as told:
        started(engine, own)
        engine.freeze(own.name)
        started(another, marker)
        eventually(lambda: marker.name in told)
        assert in_turn(told) == [marker.name]
        engine.stop(own.name, 0)
        eventually(lambda: in_turn(told) == [marker.name, own.name])


def test_other_installations_are_not_told(
    engine: Engine, another: Engine, request_: ContainerRequest, installation: str
) -> None:
    labels = request_.labels | {INSTALLATION_LABEL: f"{installation}-neighbour"}
    foreign = replace(request_, name=f"aw-{new_id()}", labels=labels)
    with following(engine, installation) as told:
        started(another, foreign)
        another.remove(foreign.name)
        started(another, request_)
        eventually(lambda: in_turn(told) == [request_.name])


@contextmanager
def following(engine: Engine, installation: str) -> Iterator[list[str]]:
    """What the engine tells from now on; it ends when the engine is closed."""
    told: list[str] = []
    changes = engine.follow(installation)
    follower = threading.Thread(target=lambda: told.extend(changes))
    follower.start()
    yield told
    engine.close()
    follower.join(10)
    assert not follower.is_alive()


def in_turn(told: list[str]) -> list[str]:
    """Each name once for each turn that it has: the engine may tell of one change twice."""
    return [name for name, _ in groupby(told)]
