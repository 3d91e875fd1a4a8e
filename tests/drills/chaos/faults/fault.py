"""The base class of faults."""

import random
from abc import ABC, abstractmethod
from typing import ClassVar

from tests.drills.chaos.site import Site


class Missed(Exception):
    """A fault could not be injected: it had no target, the target refused the change, or nothing met the fault."""


class Fault(ABC):
    """A fault that can be injected into a site and healed.

    Args:
        site: the site to break.
        rng: chooses the target and the other parameters.
    """

    # Whether the fault can be injected only at a site with PostgreSQL.
    needs_postgres: ClassVar[bool] = False
    # Whether the fault can be injected only at a site with SQLite.
    needs_sqlite: ClassVar[bool] = False
    # The shortest and the longest duration, in seconds.
    seconds: ClassVar[tuple[float, float]] = (0.5, 6.0)

    def __init__(self, site: Site, rng: random.Random) -> None:
        self.site = site
        self.subject = self.choose(rng)

    @property
    def node(self) -> str | None:
        """The only node whose sandboxes the fault can affect; None: any node's."""
        return None

    @classmethod
    def kind(cls) -> str:
        """The fault's name in reports."""
        words = "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in cls.__name__)
        return words.strip()

    def choose(self, rng: random.Random) -> str:
        """Choose the target; empty if there is only one."""
        return ""

    @abstractmethod
    def inject(self) -> None:
        """Inject the fault.

        Raises:
            Missed: the fault could not be injected.
        """

    def confirm(self) -> None:  # noqa: B027 - most faults have an effect once they are injected
        """Confirm, before the healing, that the fault has had an effect.

        Raises:
            Missed: it had none.
        """

    def heal(self) -> None:  # noqa: B027 - some faults need no healing
        """Heal the fault, as an operator or a supervisor would."""
