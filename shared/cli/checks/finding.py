"""The result of one check of `doctor`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """What was checked, and what is wrong with it.

    Args:
        name: what was checked.
        problem: what is wrong; None: nothing is.
        fix: what to do about it.
        found: what is right, such as a version.
    """

    name: str
    problem: str | None = None
    fix: str = ""
    found: str = ""
