"""The queue: from the publish to the end of a Celery task that does nothing, compared with a list in the broker."""

import time
from collections.abc import Callable
from contextlib import ExitStack

import redis

from shared.changes.notifier import server_url
from tests.bench.figures import Figure, Runs
from tests.bench.noop import DONE, QUEUE, TASK, make
from tests.services.directories import short_directory
from tests.services.forks import Fork
from tests.services.valkey import running_valkey
from tests.waiting import eventually

BARE = "bench:bare"


def queueing(runs: int, samples: int) -> Figure:
    """Measure one hop through the queue, which each new desired state takes."""
    with ExitStack() as stack:
        broker = stack.enter_context(running_valkey())
        directory = stack.enter_context(short_directory("noop"))
        worker = Fork(["tests.bench.noop", broker.url], {"AW_VAR_DIR": str(directory)}, directory / "log")
        stack.callback(worker.wait)
        stack.callback(worker.kill)
        app, client = make(broker.url), stack.enter_context(redis.Redis.from_url(server_url(broker.url)))
        app.send_task(TASK, args=["warm-up"], queue=QUEUE)
        eventually(lambda: client.lpop(DONE), deadline_seconds=60)

        def hop(number: int) -> None:
            app.send_task(TASK, args=[str(number)], queue=QUEUE)
            client.brpop([DONE])

        def push(number: int) -> None:
            client.lpush(BARE, number)
            client.brpop([BARE])

        ours: Runs = [[_timed(hop, number) for number in range(samples)] for _ in range(runs)]
        bare: Runs = [[_timed(push, number) for number in range(samples)] for _ in range(runs)]
    return Figure("queue: publish to done, no-op task", ours, "bare push and pop", bare)


def _timed(act: Callable[[int], None], number: int) -> float:
    began = time.perf_counter()
    act(number)
    return time.perf_counter() - began
