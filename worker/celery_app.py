"""The Celery application, for the worker and for Flower: `celery --app worker.app flower`."""

from shared.cli.process_settings import read_settings
from shared.queue.broker import make_app
from shared.settings import Settings

app = make_app(read_settings(Settings, "celery"))
