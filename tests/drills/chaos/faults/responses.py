"""Faults of the engines' responses: the engine works, but its responses are errors, late, truncated or lost."""

import random
from typing import ClassVar

from tests.drills.chaos.faults.engines import EngineFault
from tests.drills.chaos.faults.fault import Missed
from tests.drills.chaos.site import Site
from tests.services.faulty_engine import Failure, FailureMode

SHARES = (0.2, 0.5, 1.0)


class ResponseFault(EngineFault):
    """A fault of some of one engine's responses to the service."""

    seconds = (2.0, 9.0)
    mode: ClassVar[FailureMode]
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True

    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site, rng)
        self._share = rng.choice(SHARES)

    def inject(self) -> None:
        failure = Failure(self.mode, self._share, reads=self.reads, writes=self.writes)
        self._before = self._injected()
        self.site.faulty[self.subject].failure = failure

    def confirm(self) -> None:
        if self._injected() == self._before:
            raise Missed(f"no request to {self.subject} failed")

    def heal(self) -> None:
        self.site.faulty[self.subject].failure = None

    def _injected(self) -> int:
        return self.site.faulty[self.subject].injected.total()


class ReadsFail(ResponseFault):
    """Reads get a 500."""

    mode, writes = FailureMode.FAIL, False


class WritesFail(ResponseFault):
    """Writes get a 500 and are not executed."""

    mode, reads = FailureMode.FAIL, False


class EverythingFails(ResponseFault):
    """Reads and writes get a 500, and writes are not executed."""

    mode = FailureMode.FAIL


class ResponsesFail(ResponseFault):
    """Reads and writes get a 500, although writes are executed."""

    mode = FailureMode.FAIL_AFTER


class ResponsesDropped(ResponseFault):
    """The engine executes the request, and then closes the connection without a response."""

    mode = FailureMode.DROP


class ResponsesCut(ResponseFault):
    """The engine executes the request, and closes the connection in the middle of the response."""

    mode = FailureMode.CUT


class ResponsesLate(ResponseFault):
    """The engine executes the request at once, and responds five seconds later."""

    mode = FailureMode.DELAY


class ResponsesSwallowed(ResponseFault):
    """The engine executes the request, and never responds on the open connection."""

    mode = FailureMode.SWALLOW
