"""Batches of events for Flower: no event is lost."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from celery import Celery

from tests.fakes.waiting_worker import QUEUE, TASK, WaitingWorker
from tests.services.valkey import Valkey
from tests.waiting import eventually

JOBS = 5
ALL = {"task-received": JOBS, "task-started": JOBS, "task-succeeded": JOBS}


class ReceivedEvents:
    """Counter of the events that Flower would receive."""

    def __init__(self) -> None:
        self.events: Counter[str] = Counter()
        self.messages = 0

    def take(self, body: Any, message: Any) -> None:
        together = body if isinstance(body, list) else [body]
        self.messages += 1
        self.events.update(event["type"] for event in together)

    def of_jobs(self) -> dict[str, int]:
        return {name: count for name, count in self.events.items() if name in ALL}


@contextmanager
def watching(app: Celery) -> Iterator[ReceivedEvents]:
    """Receive events like Flower, until the end of the block."""
    received = ReceivedEvents()
    with app.connection() as connection:
        receiver: Any = app.events.Receiver(connection, handlers={})
        receiver._receive = received.take
        listener = threading.Thread(target=lambda: list(receiver.consume(limit=None, wakeup=False)))
        listener.start()
        try:
            eventually(lambda: "worker-heartbeat" in received.events)
            yield received
        finally:
            receiver.should_stop = True
            listener.join()


def send(app: Celery, count: int = JOBS) -> None:
    for number in range(count):
        app.send_task(TASK, args=[str(number)], queue=QUEUE)


def test_simultaneous_events_are_sent_as_one_message(
    celery_app: Celery, waiting_worker: WaitingWorker, tmp_path: Path
) -> None:
    assert waiting_worker.runs
    (tmp_path / "go").touch()
    with watching(celery_app) as received:
        before = received.messages
        send(celery_app)
        eventually(lambda: received.of_jobs() == ALL)
        assert received.messages - before < sum(ALL.values())


def test_pending_events_are_sent_at_the_shutdown(
    celery_app: Celery, waiting_worker: WaitingWorker, tmp_path: Path
) -> None:
    with watching(celery_app) as received:
        send(celery_app)
        eventually((tmp_path / "begun-1").exists)
        waiting_worker.terminate()
        (tmp_path / "go").touch()
        eventually(lambda: not waiting_worker.runs, deadline_seconds=30)
        eventually(lambda: received.events["task-succeeded"] == received.events["task-started"] >= 2)


def test_events_continue_when_the_broker_is_back(
    celery_app: Celery, waiting_worker: WaitingWorker, valkey: Valkey, tmp_path: Path
) -> None:
    assert waiting_worker.runs
    (tmp_path / "go").touch()
    send(celery_app, 2)
    eventually((tmp_path / "ended-1").exists)
    valkey.kill()
    valkey.start()
    with watching(celery_app) as received:
        send(celery_app)
        eventually(lambda: received.of_jobs().get("task-succeeded", 0) >= JOBS)


def test_worker_outlives_a_broker_that_rejects_its_commands(
    celery_app: Celery, waiting_worker: WaitingWorker, valkey: Valkey, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    send(celery_app, 1)
    eventually((tmp_path / "ended-0").exists)
    with valkey.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", "1")  # the broker rejects writes: its primary is missing
        eventually(lambda: "Connection to broker lost" in (tmp_path / "log").read_text())
        client.execute_command("REPLICAOF", "NO", "ONE")
    send(celery_app, 2)
    eventually((tmp_path / "ended-1").exists)
    assert waiting_worker.runs
