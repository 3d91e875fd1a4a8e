"""The processes to start, and their numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from honcho.environ import parse_procfile  # type: ignore[import-untyped]

from deploy.service.errors import ServiceError

# The Procfile of the current folder, or else the package's copy.
PROCFILES = (Path("Procfile"), Path(__file__).with_name("Procfile"))

BROKER, WEB, WORKER = "broker", "web", "worker"
ENGINE_FILTER, DOOR, EGRESS_PROXY = "engine-filter", "door", "egress-proxy"


@dataclass(frozen=True)
class Process:
    """One line of the Procfile, with the number of processes to start."""

    name: str
    count: int


def find_procfile() -> Path:
    """The Procfile of this service; `launch` finds the same."""
    return next(filter(Path.exists, PROCFILES))


def list_names(procfile: Path) -> list[str]:
    """The names of the processes in a Procfile, in its order."""
    return list(parse_procfile(procfile.read_text()).processes)


def read_processes(
    procfile: Path,
    counts: Sequence[str],
    *,
    embedded_broker: bool,
    engine_filter: bool = False,
    network_isolation: bool = True,
) -> list[Process]:
    """The processes of a Procfile in its order, without those whose number is 0.

    Args:
        procfile: the file.
        counts: numbers of processes, such as `web=2`; the default is 1.
        embedded_broker: start at most one broker; if false, none.
        engine_filter: start at most one filter before the engine; if false, none.
        network_isolation: sandboxes have a network of their own.

    A machine with workers has one door and, with network isolation, one egress proxy.

    Raises:
        ServiceError: an item of `counts` is malformed, or names no process of the Procfile.
    """
    names = list_names(procfile)
    numbers = dict.fromkeys(names, 1) | dict(_parse_count(text, names) for text in counts)
    has_workers = numbers.get(WORKER, 0) > 0
    wanted = {
        BROKER: embedded_broker,
        ENGINE_FILTER: engine_filter,
        DOOR: has_workers,
        EGRESS_PROXY: has_workers and network_isolation,
    }
    for name, is_wanted in wanted.items():
        if name in numbers:
            numbers[name] = min(numbers[name], 1) if is_wanted else 0
    return [Process(name, number) for name, number in numbers.items() if number > 0]


def _parse_count(text: str, names: Sequence[str]) -> tuple[str, int]:
    name, _, number = text.partition("=")
    if name not in names or not number.isdecimal():
        raise ServiceError(f"expected PROCESS=NUMBER, got {text!r}; the processes are {', '.join(names)}")
    return name, int(number)
