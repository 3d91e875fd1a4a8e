"""The commands of an operator, with their output and duration."""

import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

SECRET = re.compile(r"aw_[\w-]{20,}|SWMTKN-[\w-]+|(?<=:)[0-9a-f]{48}(?=@)|(?<=AW_SECRET_KEYS=)\S+")
SECONDS = 900
SHOWN_LINES, SHOWN_COLUMNS = 14, 116


@dataclass
class Transcript:
    """The commands so far."""

    lines: list[str] = field(default_factory=list)
    # The logs of processes, by machine.
    logs: dict[str, str] = field(default_factory=dict)

    def run(
        self,
        shown: str,
        command: Sequence[str],
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        text: str | None = None,
    ) -> str:
        """Run a command; return its output.

        Raises:
            AssertionError: the command failed.
        """
        began = time.monotonic()
        done = subprocess.run(
            command, cwd=cwd, env=environment, input=text, capture_output=True, text=True, check=False, timeout=SECONDS
        )
        output = done.stdout + done.stderr
        self.add(shown, output, time.monotonic() - began)
        assert done.returncode == 0, f"{shown}: {output}"
        return done.stdout

    def add(self, shown: str, output: str, seconds: float) -> None:
        """Record a command with its output."""
        lines = [f"  {line[:SHOWN_COLUMNS]}" for line in SECRET.sub("…", output).splitlines() if line.strip()]
        if len(lines) > SHOWN_LINES:
            lines = [*lines[: SHOWN_LINES // 2], "  …", *lines[-SHOWN_LINES // 2 :]]
        self.lines += [f"[{seconds:6.1f} s] {SECRET.sub('…', shown)}", *lines]

    def keep_log(self, name: str, text: str) -> None:
        """Add a log of a machine's processes."""
        self.logs[name] = self.logs.get(name, "") + SECRET.sub("…", text)

    def write(self, file: Path) -> None:
        """Write the transcript to a file, and the logs to files beside it."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(self.lines) + "\n")
        for name, text in self.logs.items():
            file.with_suffix(f".{name}.log").write_text(text)
