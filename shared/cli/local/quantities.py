"""Durations and sizes: parsed from options, and formatted for tables."""

import re

from shared.errors import Invalid
from shared.states import MAX_DEADLINE_SECONDS

UNITS = {"s": 1, "m": 60, "h": 60 * 60, "d": 24 * 60 * 60}
SIZES = {"M": 1024**2, "G": 1024**3, "T": 1024**4}
MIN_DISK_BYTES, MAX_DISK_BYTES = 16 * 1024**2, 16 * 1024**4


def parse_size(text: str) -> int:
    """Parse `500M`, `20G` or `1T` to bytes, and `0` to 0.

    Raises:
        Invalid: the text is none of these, or outside 16M to 16T.
    """
    found = re.fullmatch(r"([0-9]{1,6})([MGT]?)", text)
    size = int(found[1]) * SIZES[found[2] or "M"] if found else -1
    if not (size == 0 or (found and found[2] and MIN_DISK_BYTES <= size <= MAX_DISK_BYTES)):
        raise Invalid(f"use a size like 500M or 20G, 16M to 16T, or 0, not {text!r}")
    return size


def show_size(size: int | None) -> str:
    """Format bytes in the shortest form that `--disk` reads."""
    if not size:
        return "the node's default" if size is None else "no limit"
    unit = next(unit for unit in reversed(SIZES) if size % SIZES[unit] == 0)
    return f"{size // SIZES[unit]}{unit}"


def parse_duration(text: str) -> int | None:
    """Parse `90`, `90s`, `30m`, `12h` or `7d` to seconds, and `never` to None.

    Raises:
        Invalid: the text is none of these, zero, or more than ten years.
    """
    if text == "never":
        return None
    found = re.fullmatch(r"([0-9]{1,12})([smhd]?)", text)
    seconds = int(found[1]) * UNITS[found[2] or "s"] if found else 0
    if not 1 <= seconds <= MAX_DEADLINE_SECONDS:
        raise Invalid(f"use a time like 90s, 30m, 12h or 7d, at most ten years, or never, not {text!r}")
    return seconds


def show_duration(seconds: int | None) -> str:
    """Format seconds in the shortest form that `parse_duration` reads."""
    if seconds is None:
        return "never"
    unit = next(unit for unit in reversed(UNITS) if seconds % UNITS[unit] == 0)
    return f"{seconds // UNITS[unit]}{unit}"
