"""Jobs for a stalled broker: no request waits for it, and no thread for requests does."""

import asyncio
from threading import Event

import pytest
from starlette.concurrency import run_in_threadpool

from api.request import context
from api.request.context import JobPublisher
from shared.queue.jobs import Job, StartSandbox
from tests.doubles import RecordingPublisher

REQUESTS = 60  # more than there are threads for requests


class StalledPublisher(RecordingPublisher):
    """Blocks in `publish` until the test releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.may_publish = Event()

    def publish(self, *jobs: Job) -> None:
        self.may_publish.wait()
        super().publish(*jobs)


def publish_many(publisher: StalledPublisher) -> str:
    """Publish the jobs of many requests; return the result of other work in a request thread while they wait."""

    async def run() -> str:
        sent = JobPublisher(publisher)
        waiting = [asyncio.create_task(sent.publish(StartSandbox(str(number), "node"))) for number in range(REQUESTS)]
        await asyncio.sleep(0)
        try:
            return await run_in_threadpool(lambda: "response")
        finally:
            publisher.may_publish.set()
            await asyncio.gather(*waiting)

    return asyncio.run(run())


def test_stalled_broker_takes_no_threads_of_requests() -> None:
    publisher = StalledPublisher()
    assert publish_many(publisher) == "response"
    assert {job.subject for job in publisher.jobs} == set(map(str, range(REQUESTS)))


def test_jobs_of_too_many_requests_are_left_to_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "MAX_WAITING", 10)
    publisher = StalledPublisher()
    publish_many(publisher)
    assert {job.subject for job in publisher.jobs} == set(map(str, range(10)))
