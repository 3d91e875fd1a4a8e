"""The job queue: jobs, the Celery broker, patches of kombu."""
