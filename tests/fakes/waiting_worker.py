"""`python -m tests.fakes.waiting_worker DIRECTORY`: a worker whose jobs note that they begin, and wait for `go` to end.

The settings are the service's own; only the jobs are not.
"""

import sys
import time
from pathlib import Path

from shared.queue.broker import make_app
from shared.settings import Settings
from worker.celery_consumer import EventBatchingConsumer

QUEUE, TASK = "node.waiting", "tests.wait"
MAX_SECONDS = 60


def main(directory: Path) -> None:
    app = make_app(Settings())

    @app.task(name=TASK)
    def wait(subject: str) -> None:
        (directory / f"begun-{subject}").touch()
        deadline = time.monotonic() + MAX_SECONDS
        while not (directory / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        (directory / f"ended-{subject}").touch()

    app.Worker(
        pool="threads",
        concurrency=2,
        queues=[QUEUE],
        without_mingle=True,
        without_gossip=True,
        consumer_cls=EventBatchingConsumer,
    ).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
