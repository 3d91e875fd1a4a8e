"""The modules that Celery imports when a worker starts. Forks import them before they begin."""

LAZY = (
    "celery.app.amqp",
    "celery.app.control",
    "celery.app.events",
    "celery.app.log",
    "celery.app.routes",
    "celery.apps.worker",
    "celery.backends.base",
    "celery.concurrency.thread",
    "celery.events.dispatcher",
    "celery.fixups.django",
    "celery.worker.autoscale",
    "celery.worker.consumer.delayed_delivery",
    "celery.worker.strategy",
    "kombu.matcher",
    "kombu.pidbox",
    "kombu.transport.redis",
)
