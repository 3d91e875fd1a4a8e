"""What every fault has in common."""

import random
from abc import ABC, abstractmethod
from typing import ClassVar

from tests.drills.chaos.site import Site


class Missed(Exception):
    """A fault could not be inflicted: there was nothing to do it to, or that can't be treated so."""


class Fault(ABC):
    """One thing that goes wrong at a site, and is mended again.

    Args:
        site: where.
        rng: decides on what is left open.
    """

    # Whether it breaks something that only a site with PostgreSQL has.
    needs_postgres: ClassVar[bool] = False
    # How long it lasts, shortest and longest, in seconds.
    seconds: ClassVar[tuple[float, float]] = (0.5, 6.0)

    def __init__(self, site: Site, rng: random.Random) -> None:
        self.site = site
        self.subject = self.choose(rng)

    @property
    def node(self) -> str | None:
        """The only node whose sandboxes it can harm; None: any node's."""
        return None

    @classmethod
    def kind(cls) -> str:
        """What it is called in reports."""
        words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in cls.__name__)
        return words.strip()

    def choose(self, rng: random.Random) -> str:
        """Whom it hits; there may be only one."""
        return ""

    @abstractmethod
    def inflict(self) -> None:
        """Let it happen.

        Raises:
            Missed: it can't.
        """

    def heal(self) -> None:  # noqa: B027 - some things need no mending
        """Mend it, as an operator or a supervisor would."""
