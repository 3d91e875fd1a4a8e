"""The files that control the failpoints of one process; see `tests.drills.faults.observer`."""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from tests.drills.faults.crash_states import Hit


class Points:
    """The points that a process has reached, the point at which it dies, and the operations that it must not begin."""

    def __init__(self, process: str, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._process = process
        self.directory = directory
        self._reached, self._armed, self._held = (directory / name for name in ("reached", "armed", "held"))

    def hits(self) -> list[Hit]:
        """Each hit since `forget`, in order."""
        with suppress(FileNotFoundError):
            return [self._read(line) for line in self._reached.read_text().splitlines()]
        return []

    def forget(self) -> None:
        """Clear the list of hits."""
        self._reached.write_text("")

    def arm(self, point: str) -> None:
        """Make the process kill itself at the point."""
        self._armed.write_text(point)

    def is_armed(self) -> bool:
        """Whether the process has not reached the point yet."""
        return self._armed.exists()

    def disarm(self) -> bool:
        """Cancel the kill; return False if the process has already reached the point."""
        try:
            self._armed.unlink()
        except FileNotFoundError:
            return False
        return True

    def held(self) -> list[str]:
        """The operations that the process must not begin."""
        with suppress(FileNotFoundError):
            return self._held.read_text().splitlines()
        return []

    def hold(self, operations: Iterable[str]) -> None:
        """Hold these operations, and release all others."""
        written = self._held.with_suffix(".new")
        written.write_text("\n".join(operations))
        written.rename(self._held)

    def _read(self, line: str) -> Hit:
        point, by, content = line.split("\t")
        instance, _, thread = by.rpartition(".")
        return Hit(self._process, point, instance, thread, content)
