"""What tests of traffic are made of: an agent server behind a socket, a worker that resumes at once, and keys."""

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
    """A sandbox's agent server, and where it is."""

    server: TrafficServer
    url: str

    @property
    def urls(self) -> list[dict[str, Any]]:
        """As a sandbox's row has them."""
        return [{"name": "AGENT_SERVER", "url": self.url, "port": 8000}]

    @property
    def running(self) -> ObservedState:
        """What a worker writes when it runs."""
        return ObservedState(Status.RUNNING, exposed_urls=self.urls)


class Worker(RecordingPublisher):
    """Carries resumes out as they are published, unless a test says otherwise."""

    def __init__(self, resume: Resume) -> None:
        super().__init__()
        self.resume = resume

    @property
    def resumed(self) -> list[str]:
        """The sandboxes of the resumes, in order."""
        return [job.subject for job in self.jobs if isinstance(job, ResumeSandbox)]

    def publish(self, *jobs: Job) -> None:
        super().publish(*jobs)
        for job in jobs:
            if isinstance(job, ResumeSandbox):
                self.resume(job.subject)


def key_of(sandbox: Sandbox) -> dict[str, str]:
    """What a client of the sandbox sends."""
    return {"X-Session-API-Key": session_key_of(sandbox)}
