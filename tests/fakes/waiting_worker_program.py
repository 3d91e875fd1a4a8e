"""The process of `waiting_worker`. The settings are the service's; only the jobs differ."""

import importlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

from shared.queue.broker import make_app
from shared.settings import Settings
from tests.fakes.waiting_worker import QUEUE, TASK
from tests.services.celery_modules import LAZY
from worker.celery_consumer import JobConsumer

MAX_SECONDS = 60

for name in LAZY:
    importlib.import_module(name)


def main(arguments: Sequence[str]) -> None:
    """Run the worker until a signal stops it; the arguments are the broker's URL and the directory of its files."""
    broker_url, directory = arguments[0], Path(arguments[1])
    output = os.open(directory / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.chdir("/")  # in the repository, there may be settings
    for variable in [variable for variable in os.environ if variable.startswith("AW_")]:
        del os.environ[variable]
    _work(Settings(redis_url=broker_url), directory)


def _work(settings: Settings, directory: Path) -> None:
    app = make_app(settings)

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
