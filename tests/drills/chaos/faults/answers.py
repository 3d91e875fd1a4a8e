"""Faults of the engines' responses: the engine runs, and its responses are errors, late, truncated or lost."""

import random
from typing import ClassVar

from tests.drills.chaos.faults.engines import EngineFault
from tests.drills.chaos.site import Site
from tests.services.faulty_engine import Trouble, Way

SHARES = (0.2, 0.5, 1.0)


class ResponseFault(EngineFault):
    """A fault of some of one engine's responses to the service."""

    seconds = (2.0, 9.0)
    way: ClassVar[Way]
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True

    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site, rng)
        self._share = rng.choice(SHARES)

    def inject(self) -> None:
        trouble = Trouble(self.way, self._share, reads=self.reads, writes=self.writes)
        self.site.faulty[self.subject].trouble = trouble

    def heal(self) -> None:
        self.site.faulty[self.subject].trouble = None


class ReadsFail(ResponseFault):
    """Reads get a 500."""

    way, writes = Way.FAIL, False


class WritesFail(ResponseFault):
    """Writes get a 500 and are not executed."""

    way, reads = Way.FAIL, False


class EverythingFails(ResponseFault):
    """Reads and writes get a 500, and writes are not executed."""

    way = Way.FAIL


class AnswersFail(ResponseFault):
    """Reads and writes get a 500, although writes are executed."""

    way = Way.FAIL_AFTER


class AnswersDropped(ResponseFault):
    """The engine executes the request, and then closes the connection without a response."""

    way = Way.DROP


class AnswersCut(ResponseFault):
    """The engine executes the request, and closes the connection in the middle of the response."""

    way = Way.CUT


class AnswersLate(ResponseFault):
    """The engine executes the request at once, and responds five seconds later."""

    way = Way.DELAY


class AnswersSwallowed(ResponseFault):
    """The engine executes the request, and never responds on the open connection."""

    way = Way.SWALLOW
