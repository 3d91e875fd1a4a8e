"""`python -m tests.bench.noop BROKER`: a Celery worker, configured as the service's, with one task that does nothing.

The task pushes its result to a list in the broker, so that the waiting client need not poll.
"""

import sys

import redis
from celery import Celery
from pydantic import SecretStr

from shared.changes.notifier import server_url
from shared.queue.broker import make_app
from shared.settings import Settings

TASK, QUEUE, DONE = "bench.noop", "bench", "bench:done"


def make(broker: str) -> Celery:
    """Create the application with the task."""
    app = make_app(Settings(redis_url=broker, secret_keys=SecretStr("")))
    client = redis.Redis.from_url(server_url(broker))

    @app.task(name=TASK, shared=False)
    def noop(number: str) -> None:
        client.lpush(DONE, number)

    return app


def main(broker: str) -> None:
    """Work until interrupted."""
    make(broker).Worker(pool="threads", concurrency=4, queues=[QUEUE], without_mingle=True, without_gossip=True).start()


if __name__ == "__main__":
    main(sys.argv[1])
