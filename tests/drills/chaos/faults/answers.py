"""Faults of what engines answer: they live, and what they say is wrong, late, cut short or never comes."""

import random
from typing import ClassVar

from tests.drills.chaos.faults.engines import OfEngine
from tests.drills.chaos.site import Site
from tests.services.faulty_engine import Trouble, Way

SHARES = (0.2, 0.5, 1.0)


class AnswersSpoiled(OfEngine):
    """Some of one engine's answers to the service are not as they should be."""

    seconds = (2.0, 9.0)
    way: ClassVar[Way]
    reads: ClassVar[bool] = True
    writes: ClassVar[bool] = True

    def __init__(self, site: Site, rng: random.Random) -> None:
        super().__init__(site, rng)
        self._share = rng.choice(SHARES)

    def inflict(self) -> None:
        trouble = Trouble(self.way, self._share, reads=self.reads, writes=self.writes)
        self.site.faulty[self.subject].trouble = trouble

    def heal(self) -> None:
        self.site.faulty[self.subject].trouble = None


class ReadsFail(AnswersSpoiled):
    """500 to questions."""

    way, writes = Way.FAIL, False


class WritesFail(AnswersSpoiled):
    """500 to changes, which are not made."""

    way, reads = Way.FAIL, False


class EverythingFails(AnswersSpoiled):
    """500 to both."""

    way = Way.FAIL


class AnswersFail(AnswersSpoiled):
    """500 to changes that are made all the same, and to questions."""

    way = Way.FAIL_AFTER


class AnswersDropped(AnswersSpoiled):
    """What was asked for is done, and then the engine hangs up."""

    way = Way.DROP


class AnswersCut(AnswersSpoiled):
    """The same in the middle of the answer."""

    way = Way.CUT


class AnswersLate(AnswersSpoiled):
    """What was asked for is done at once, and said so five seconds later."""

    way = Way.DELAY


class AnswersSwallowed(AnswersSpoiled):
    """What was asked for is done, and nothing is said, on an open connection."""

    way = Way.SWALLOW
