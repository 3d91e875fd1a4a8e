"""The Celery application, for the worker and for Flower: `celery --app worker.app flower`."""

from shared.queue.broker import make_app
from shared.settings import Settings

app = make_app(Settings())
