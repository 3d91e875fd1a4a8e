"""Test doubles for the proxy: an agent server with a socket, and a worker that resumes immediately."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import httpx

from shared.models import Sandbox
from shared.queue.jobs import Job, ResumeSandbox
from shared.sandboxes.status import ObservedState
from shared.states import Status
from tests.doubles import RecordingPublisher
from tests.factories import session_key_of
from tests.fakes.traffic import TrafficServer

Resume = Callable[[str], None]
Serve = Callable[..., AbstractContextManager[httpx.Client]]


@dataclass
class Agent:
    """A sandbox's agent server and its URL."""

    server: TrafficServer
    url: str

    @property
    def urls(self) -> list[dict[str, Any]]:
        """The exposed URLs of a sandbox's row."""
        return [{"name": "AGENT_SERVER", "url": self.url, "port": 8000}]

    @property
    def running(self) -> ObservedState:
        """The observed state of its sandbox while that runs."""
        return ObservedState(Status.RUNNING, exposed_urls=self.urls)


class Worker(RecordingPublisher):
    """Executes resumes as they are published; a test may replace `resume`."""

    def __init__(self, resume: Resume) -> None:
        super().__init__()
        self.resume = resume

    @property
    def resumed(self) -> list[str]:
        """Ids of the resumed sandboxes, in order."""
        return [job.subject for job in self.jobs if isinstance(job, ResumeSandbox)]

    def publish(self, *jobs: Job) -> None:
        super().publish(*jobs)
        for job in jobs:
            if isinstance(job, ResumeSandbox):
                self.resume(job.subject)


def key_of(sandbox: Sandbox) -> dict[str, str]:
    """The headers of a client with the sandbox's session key."""
    return {"X-Session-API-Key": session_key_of(sandbox)}
