"""A chaos run: rounds of faults under load. After each round, all parts must agree, and requests must be fulfilled."""

import math
import shutil
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sqlmodel import func, select

from shared.models import Sandbox, SandboxTransition, StartTask
from shared.states import Reason
from tests.drills.chaos.nemesis import Nemesis
from tests.drills.chaos.site import Site, running_site
from tests.drills.chaos.supervisor import Supervisor
from tests.drills.chaos.verdict import Broken, await_agreement, never
from tests.drills.chaos.watch import Watch
from tests.drills.chaos.workload import Workload
from tests.drills.expected_failures import InjectedFault, is_expected
from tests.drills.requests import Outcome

ROUND_SECONDS = 20.0
# Some frozen workers must stay frozen for longer than their leases.
DEFAULT_SETTINGS_STRETCH = 2.5
# The minimum number of faults per minute under load.
LEAST_FAULTS = 20
# The maximum average interval of the checks for sandboxes that ran twice: an engine that is down cannot be listed.
MAX_SECONDS_PER_CHECK = 4.0
# A run of at least this length must inject every kind of fault.
ALL_KINDS_SECONDS = 300.0
# The greatest factor by which a slow machine may exceed the requested length.
MAX_TIMES = 3
Report = Callable[[str], None]


@dataclass
class Result:
    """The result of a run.

    Args:
        ends: the number of times that each process ended by itself and was restarted.
        agreement: seconds from the last fault of each round to agreement.
        fulfilment: seconds from the last request of each round, without faults, to agreement.
    """

    database: str
    seed: int
    short_timeouts: bool
    seconds: float = 0.0
    acknowledged: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    # Faults that could not be injected or had no effect.
    missed: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    # The kinds of requests of which none succeeded.
    missing: list[str] = field(default_factory=list)
    # Start tasks by their last stage.
    starts: Counter[str] = field(default_factory=Counter)
    agreement: list[float] = field(default_factory=list)
    fulfilment: list[float] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    @property
    def is_kept(self) -> bool:
        """Whether the promise was kept."""
        return not self.violations


def run(
    database: str,
    *,
    seed: int,
    seconds: float,
    operations: int,
    logs: Path,
    report: Report,
    short_timeouts: bool = True,
) -> Result:
    """Inject faults for a time, and until enough writes are acknowledged.

    Args:
        database: `sqlite` or `postgresql`.
        seed: determines the faults, the requests and their order.
        seconds: how long to inject faults under load, without the time between rounds.
        operations: the minimum number of acknowledged writes.
        logs: the directory for the processes' logs if the promise is not kept.
        report: called with each line of progress.
        short_timeouts: use shorter leases and intervals than the service's defaults, and shorter faults.
    """
    result = Result(database, seed, short_timeouts)
    stretch = 1.0 if short_timeouts else DEFAULT_SETTINGS_STRETCH
    with running_site(database, short_timeouts=short_timeouts) as site:
        workload, nemesis = Workload(site, seed), Nemesis(site, seed, stretch=stretch)
        supervisor, watch = Supervisor(site), Watch(site, nemesis)
        supervisor.start()
        watch.start()
        try:
            while not _is_enough(result, nemesis, seconds, operations):
                _run_round(site, workload, nemesis, result, min(ROUND_SECONDS * stretch, seconds))
                report(_describe(result))
            _delete_everything(site, workload)
        except Broken as broken:
            result.violations += broken.violations
        except AssertionError as error:  # of a client: a wrong response
            result.violations.append(str(error))
        finally:
            workload.close()
            watch.stop()
            supervisor.stop()
        result.ends = supervisor.ends
        result.violations += [f"sandbox {each} ran twice, on {where}" for each, where in watch.doubles.items()]
        result.violations += [f"{name} ended by itself, {count} times" for name, count in result.ends.items()]
        result.violations = result.violations or _weaknesses(result, watch, nemesis, seconds)
        if not result.is_kept:
            _keep_logs(site, nemesis, logs)
    return result


def _is_enough(result: Result, nemesis: Nemesis, seconds: float, operations: int) -> bool:
    """Whether the run meets its requirements. A slow machine may take longer, up to a limit."""
    if result.seconds < seconds or result.acknowledged < operations:
        return False
    return not _missing(result, nemesis, seconds) or result.seconds > MAX_TIMES * seconds


def _missing(result: Result, nemesis: Nemesis, seconds: float) -> list[str]:
    """The requirements for a run of this length that the run does not meet."""
    least = round(seconds * LEAST_FAULTS / 60)
    few = [f"only {result.faults.total()} of {least} faults"] if result.faults.total() < least else []
    kinds = nemesis.missing if seconds >= ALL_KINDS_SECONDS else []
    acts = [f"no request of this kind succeeded: {act}" for act in result.missing]
    return few + acts + [f"no fault of this kind: {kind}" for kind in kinds]


def _weaknesses(result: Result, watch: Watch, nemesis: Nemesis, seconds: float) -> list[str]:
    """The reasons why a run without violations proves too little."""
    least = math.ceil(result.seconds / MAX_SECONDS_PER_CHECK)
    blind = [f"only {watch.checks} of {least} checks for sandboxes that ran twice"] if watch.checks < least else []
    return blind + _missing(result, nemesis, seconds)


def _run_round(site: Site, workload: Workload, nemesis: Nemesis, result: Result, seconds: float) -> None:
    began = time.monotonic()
    workload.start()
    nemesis.start()
    time.sleep(seconds)
    nemesis.stop()
    workload.stop()
    result.seconds += time.monotonic() - began
    workload.fleet.counts[f"pool claim {Outcome.OK}"] = _count_pool_claims(site)
    result.acknowledged, result.counts = workload.acknowledged, workload.counts
    result.missing = workload.missing
    result.faults, result.missed = nemesis.effective, nemesis.missed
    is_expected = partial(_is_expected_of, requested_at=workload.fleet.requested_at, log=nemesis.log)
    result.agreement.append(await_agreement(site, workload, is_expected, "after the last fault"))
    result.starts = _count_starts(site)
    workload.repair()
    result.fulfilment.append(await_agreement(site, workload, never, "without faults"))


def _count_starts(site: Site) -> Counter[str]:
    with site.service.database.reading() as session:
        return Counter(session.exec(select(StartTask.stage)).all())


def _count_pool_claims(site: Site) -> int:
    claims = select(func.count()).select_from(SandboxTransition).where(SandboxTransition.reason == Reason.CLAIMED)
    with site.service.database.reading() as session:
        return session.exec(claims).one()


def _delete_everything(site: Site, workload: Workload) -> None:
    """Delete every sandbox, which must succeed from any state."""
    workload.delete_all()
    await_agreement(site, workload, never, "after deleting every sandbox")


def _is_expected_of(row: Sandbox, *, requested_at: dict[str, float], log: list[InjectedFault]) -> bool:
    return is_expected(row, requested_at.get(row.id, 0.0), log)


def _describe(result: Result) -> str:
    return (
        f"round {len(result.agreement):3}: {result.acknowledged:6} acknowledged, {result.faults.total():4} faults, "
        f"agreement after {result.agreement[-1]:5.1f} s, fulfilment after {result.fulfilment[-1]:5.1f} s"
    )


def _keep_logs(site: Site, nemesis: Nemesis, directory: Path) -> None:
    """Copy the processes' logs, and write the list of faults, for an investigation."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "nemesis.log").write_text("\n".join(map(_line, nemesis.log)))
    for log in site.directory.glob("*.log"):
        shutil.copy(log, directory)
    if site.postgres is None:
        shutil.copy(site.directory / "chaos.db", directory)


def _line(fault: InjectedFault) -> str:
    failed = "" if fault.effective else " (failed)"
    return f"{fault.at.isoformat()} {fault.ended - fault.began:5.1f} s {fault.kind} {fault.subject}{failed}"
