"""`python -m tests.fakes.waiting_worker DIRECTORY`: a worker whose jobs record their start and wait for the file `go`.

The settings are the service's; only the jobs differ.
"""

import sys
import time
from pathlib import Path

from shared.queue.broker import make_app
from shared.settings import Settings
from worker.celery_consumer import JobConsumer

QUEUE, TASK = "node.waiting", "tests.wait"
MAX_SECONDS = 60


def main(directory: Path) -> None:
    app = make_app(Settings())

    @app.task(name=TASK)
    def wait(row_id: str) -> None:
        (directory / f"begun-{row_id}").touch()
        deadline = time.monotonic() + MAX_SECONDS
        while not (directory / "go").exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        (directory / f"ended-{row_id}").touch()

    app.Worker(
        pool="threads",
        concurrency=2,
        queues=[QUEUE],
        without_mingle=True,
        without_gossip=True,
        consumer_cls=JobConsumer,
    ).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
