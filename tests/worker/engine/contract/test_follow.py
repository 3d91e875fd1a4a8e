"""Changes of containers that an engine reports."""

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


def test_changes_are_reported_in_order(
    engine: Engine, another: Engine, request_: ContainerRequest, installation: str
) -> None:
    first, second = request_, replace(request_, name=f"aw-{new_id()}")
    for request in (first, second):
        started(another, request)
        another.stop(request.name, 0)
    with following(engine, installation) as reported:
        another.start(first.name)
        another.start(second.name)
        another.pause(first.name)
        another.stop(second.name, 0)
        another.unpause(first.name)
        another.remove(second.name)
        # Changes from the same second before the subscription can be reported, too.
        eventually(lambda: without_repeats(reported)[-6:] == [first.name, second.name] * 3)


def test_own_starts_and_pauses_are_not_reported(
    engine: Engine, another: Engine, request_: ContainerRequest, installation: str
) -> None:
    own, marker = request_, replace(request_, name=f"aw-{new_id()}")
    with following(engine, installation) as reported:
        started(engine, own)
        engine.pause(own.name)
        started(another, marker)
        eventually(lambda: marker.name in reported)
        assert without_repeats(reported) == [marker.name]
        engine.stop(own.name, 0)
        eventually(lambda: without_repeats(reported) == [marker.name, own.name])


def test_other_installations_are_not_reported(
    engine: Engine, another: Engine, request_: ContainerRequest, installation: str
) -> None:
    labels = request_.labels | {INSTALLATION_LABEL: f"{installation}-neighbour"}
    foreign = replace(request_, name=f"aw-{new_id()}", labels=labels)
    with following(engine, installation) as reported:
        started(another, foreign)
        another.remove(foreign.name)
        started(another, request_)
        eventually(lambda: without_repeats(reported) == [request_.name])


@contextmanager
def following(engine: Engine, installation: str) -> Iterator[list[str]]:
    """Collect the reported names, until the engine is closed at the end of the block."""
    reported: list[str] = []
    changes = engine.follow(installation)
    follower = threading.Thread(target=lambda: reported.extend(changes), daemon=True)
    follower.start()
    try:
        yield reported
    finally:
        engine.close()
        follower.join(10)
    assert not follower.is_alive()


def without_repeats(reported: list[str]) -> list[str]:
    """Remove consecutive duplicates: the engine may report one change two times."""
    return [name for name, _ in groupby(reported)]
