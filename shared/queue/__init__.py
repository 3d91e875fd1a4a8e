"""The job queue: jobs, the Celery broker, its patches."""
