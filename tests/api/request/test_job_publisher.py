"""Jobs on their way to a broker that stalls: requests do not wait for it, and hold none of its threads."""

import asyncio
from threading import Event

import pytest
from starlette.concurrency import run_in_threadpool

from api.request import job_publisher
from api.request.job_publisher import Publishing
from shared.queue.jobs import Job, StartSandbox
from tests.doubles import RecordingPublisher

REQUESTS = 60  # more than threads for them


class Stalled(RecordingPublisher):
    """Publishes once it may."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on = Event()

    def publish(self, *jobs: Job) -> None:
        self.goes_on.wait()
        super().publish(*jobs)


def publish_many(publisher: Stalled) -> str:
    """What a request is answered with while many jobs wait."""

    async def run() -> str:
        sent = Publishing(publisher)
        waiting = [asyncio.create_task(sent.publish(StartSandbox(str(number), "node"))) for number in range(REQUESTS)]
        await asyncio.sleep(0)
        try:
            return await run_in_threadpool(lambda: "answered")
        finally:
            publisher.goes_on.set()
            await asyncio.gather(*waiting)

    return asyncio.run(run())


def test_stalled_broker_takes_no_threads_of_requests() -> None:
    publisher = Stalled()
    assert publish_many(publisher) == "answered"
    assert {job.subject for job in publisher.jobs} == set(map(str, range(REQUESTS)))


def test_jobs_of_too_many_requests_are_left_to_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_publisher, "MAX_WAITING", 10)
    publisher = Stalled()
    publish_many(publisher)
    assert {job.subject for job in publisher.jobs} == set(map(str, range(10)))
