"""Which processes to start, and how many of each."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from honcho.environ import parse_procfile  # type: ignore[import-untyped]

from deploy.service.errors import ServiceError

BROKER = "broker"


@dataclass(frozen=True)
class Process:
    """One line of the Procfile, to be started `count` times."""

    name: str
    count: int


def read_processes(procfile: Path, wishes: Sequence[str], *, embedded_broker: bool) -> list[Process]:
    """The processes of a Procfile, in its order, without those of which none is wanted.

    Args:
        procfile: the file.
        wishes: how many of each, as `web=2`; one where nothing is said.
        embedded_broker: whether the broker is ours to start; there can't be two.

    Raises:
        ServiceError: a wish is not of that form, or names no process of the Procfile.
    """
    names = list(parse_procfile(procfile.read_text()).processes)
    counts = dict.fromkeys(names, 1) | dict(_parse_wish(wish, names) for wish in wishes)
    if BROKER in counts:
        counts[BROKER] = min(counts[BROKER], 1) if embedded_broker else 0
    return [Process(name, count) for name, count in counts.items() if count > 0]


def _parse_wish(wish: str, names: Sequence[str]) -> tuple[str, int]:
    name, _, number = wish.partition("=")
    if name not in names or not number.isdecimal():
        raise ServiceError(f"{wish}: say PROCESS=NUMBER, the process being one of {', '.join(names)}")
    return name, int(number)
