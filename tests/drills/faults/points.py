"""The files by which the failpoints of one process are led; see `tests.drills.faults.observer`."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.drills.faults.crash_states import Meeting


class Points:
    """What one process has met, where it is to die, and what it is not to begin."""

    def __init__(self, process: str, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._process = process
        self.directory = directory
        self._met, self._armed, self._held = (directory / name for name in ("met", "armed", "held"))

    def met(self) -> list[Meeting]:
        """Each meeting of a point since `forget`, in order."""
        with suppress(FileNotFoundError):
            return [self._read(line) for line in self._met.read_text().splitlines()]
        return []

    def forget(self) -> None:
        """Begin a new list of points met."""
        self._met.write_text("")

    def arm(self, point: str) -> None:
        """Let the process die at that point."""
        self._armed.write_text(point)

    def is_armed(self) -> bool:
        """Whether it has not met that point yet."""
        return self._armed.exists()

    def disarm(self) -> bool:
        """Let it live; False: it is too late."""
        try:
            self._armed.unlink()
        except FileNotFoundError:
            return False
        return True

    def held(self) -> list[str]:
        """What it is not to begin."""
        with suppress(FileNotFoundError):
            return self._held.read_text().splitlines()
        return []

    def hold(self, operations: Iterable[str]) -> None:
        """Let these not begin, and all others."""
        written = self._held.with_suffix(".new")
        written.write_text("\n".join(operations))
        written.rename(self._held)

    def _read(self, line: str) -> Meeting:
        point, _, by = line.partition("\t")
        instance, _, thread = by.rpartition(".")
        return Meeting(self._process, point, instance, thread)
