"""The service with its failpoints led: killed at a point that is asked for, restarted, and held to its promise."""

import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
from sqlalchemy import delete, exists, or_
from sqlmodel import col, select

from shared.models import (
    Conversation,
    Event,
    IdempotencyKey,
    PendingMessage,
    Sandbox,
    SandboxLog,
    SandboxTransition,
    StaleContainer,
    StartTask,
)
from shared.nodes import placement
from shared.sandboxes import specs
from shared.states import Desired, Status
from shared.warm_pool import pool as warm_pool
from tests.drills.bounds import Bounds
from tests.drills.checker import check
from tests.drills.engine_listing import Holdings, list_holdings
from tests.drills.engine_socket import EngineSocket
from tests.drills.evidence import Evidence
from tests.drills.faults.crash_states import Meeting
from tests.drills.faults.observer import VARIABLE
from tests.drills.faults.points import Points
from tests.drills.gathering import gather
from tests.drills.history import History, RecordingClient
from tests.drills.wire_listing import list_statuses
from tests.factories import make_person
from tests.services.deployment import Deployment
from tests.services.engine import TINY_IMAGE
from tests.services.faulty_engine import FaultyEngine
from tests.services.private_engine import PrivateEngine
from tests.waiting import eventually, pause

PROCESSES = ("api", "worker")
# The tables of what an operation makes, in an order in which they can be emptied.
OF_SANDBOXES = (SandboxTransition, SandboxLog, StaleContainer)
MADE = (PendingMessage, Event, StartTask, Conversation, *OF_SANDBOXES, IdempotencyKey, Sandbox)
# Something is due, or in a worker's hands: one statement, because it is asked many times a second.
WORK = [col(one.due_at).is_not(None) | col(one.lease_until).is_not(None) for one in (Sandbox, StartTask, Conversation)]
IS_BUSY = select(or_(*(exists().where(wanted) for wanted in WORK)))
# The last fault is followed by agreement within this time: the promise.
CONVERGENCE_SECONDS = 30.0
# How long a process that is at rest may take to come by the point at which it is to be killed.
REACH_SECONDS = 20.0
# As long as no new point is met for this time, at rest, none will be.
QUIET_SECONDS = 0.2
POLL_SECONDS = 0.05
# Within this time an operation's beginning is made if nothing is refused.
SOON_SECONDS = 10.0


class Runner:
    """One installation, its history, and what leads its processes.

    Args:
        faulty: by what the service reaches the engine.
        registry: the address that images can be pulled from.
        bounds: what keeps its sandboxes apart.
        doomed: the specs whose sandboxes can't start.
        neighbours: the installations that share the engine, or have shared it.
    """

    def __init__(
        self,
        service: Deployment,
        engine: PrivateEngine,
        faulty: FaultyEngine,
        registry: str,
        directory: Path,
        *,
        bounds: Bounds,
        doomed: frozenset[str],
        neighbours: Collection[str],
    ) -> None:
        self.client = RecordingClient(service.url, make_person(service.database, "alice"))
        self.service = service
        self.engine, self.faulty = engine, faulty
        self.registry = registry
        self.bounds = bounds
        self.points = {name: Points(name, directory / name) for name in PROCESSES}
        # What the requests of the operation were answered; None: no answer.
        self.answers: list[httpx.Response | None] = []
        # The point of the last death in the operation.
        self.died_at: str | None = None
        # Seconds from a kill to agreement, each.
        self.recoveries: list[float] = []
        self._socket = EngineSocket(engine.host)
        self._doomed = doomed
        self._neighbours = neighbours
        self._settings: Mapping[str, str] = {}

    # --- processes ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start both processes."""
        for name in PROCESSES:
            self.start_process(name)
        eventually(self._has_node)

    def start_process(self, name: str) -> None:
        """Start a process that does not run."""
        self.service.environment[VARIABLE] = str(self.points[name].directory)
        if name == "api":
            self.service.start_api(**self._settings)
        else:
            self.service.start_worker(**self.bounds.settings, **self._settings)

    def adopt(self, settings: Mapping[str, str]) -> None:
        """Let the processes have these settings beside their own: restart them if they have not."""
        if settings != self._settings:
            self._settings = settings
            for name in PROCESSES:
                self.service.kill(name)
            self.start()

    def hold(self, routines: Iterable[str] = ()) -> None:
        """Hold these of the worker's routines back, and let all others go."""
        self.points["worker"].hold(routines)

    @contextmanager
    def released(self) -> Iterator[None]:
        """Hold nothing back for the length of the block."""
        held = self.points["worker"].held()
        self.hold()
        try:
            yield
        finally:
            self.hold(held)

    def is_dead(self, process: str) -> bool:
        """Whether the process has died at its point."""
        code = self.service.exit_code(process)
        assert code in (None, -signal.SIGKILL), f"{process} ended with {code}"
        return code is not None

    # --- faults ---------------------------------------------------------------------------------------------------

    def record(self, act: Callable[[], None], operations: frozenset[str]) -> list[Meeting]:
        """The meetings of these operations' points while this is done and until all is at rest, in order.

        None of them if it does not come to rest: what is held back may have been stopped during what is missing.
        """
        self.forget(PROCESSES)
        act()
        met: list[Meeting] = []
        since = time.monotonic()
        deadline = since + CONVERGENCE_SECONDS
        while not met or time.monotonic() < since + QUIET_SECONDS or not self.is_at_rest():
            if time.monotonic() > deadline:
                return []
            if met != (met := self.met(operations)):
                since = time.monotonic()
            time.sleep(POLL_SECONDS)
        return self.met(operations)  # the last ones may have been met since, and all be at rest now

    def forget(self, processes: Iterable[str]) -> None:
        """Begin a new list of the points that each of these processes meets."""
        for process in processes:
            self.points[process].forget()

    def met(self, operations: frozenset[str]) -> list[Meeting]:
        """Each meeting of these operations' points since `record` began."""
        found = (each for points in self.points.values() for each in points.met())
        return [each for each in found if each.point.rsplit("/", 2)[0] in operations]

    def dies_at(self, process: str, point: str, act: Callable[[], None]) -> bool:
        """Do this, and see the process die at the point; False: it came to rest and had not passed there."""
        self.arm(process, point)
        act()
        died = self.await_death(process)
        self.died_at = point if died else self.died_at
        return died

    def arm(self, process: str, point: str) -> None:
        """Let the process die when it meets the point."""
        self.points[process].arm(point)

    def disarm(self, process: str) -> None:
        """Let the process live, if it does."""
        self.points[process].disarm()

    def await_death(self, process: str) -> bool:
        """Whether the process that is armed dies; False: it comes to rest without, or does not come to rest.

        What is held back may have been stopped during its round, and have to end what it began.
        """
        points, rested_at = self.points[process], None
        deadline = time.monotonic() + CONVERGENCE_SECONDS
        while points.is_armed():
            rested_at = (rested_at or time.monotonic()) if self.is_at_rest() else None
            patience_ends = deadline if rested_at is None else rested_at + REACH_SECONDS
            if time.monotonic() > patience_ends and points.disarm():
                return False
            time.sleep(POLL_SECONDS)
        eventually(lambda: self.is_dead(process))
        return True

    # --- agreement ------------------------------------------------------------------------------------------------

    def await_agreement(self, *, closely: bool = True) -> None:
        """Wait until the promise is kept, and the API, which must run, shows it; `closely`: not by polls alone."""
        began = time.monotonic()
        while self._is_busy() or self._seen_violations(shown=True) or (closely and self.violations(shown=True)):
            assert time.monotonic() < began + CONVERGENCE_SECONDS, self.violations(shown=True)
            pause(began, POLL_SECONDS)

    def is_at_rest(self) -> bool:
        """Whether nothing wants a hand and the promise is kept, as far as a poll shows it."""
        return not self._is_busy() and not self._seen_violations()

    def violations(self, *, shown: bool = False) -> list[str]:
        """What is not as it was promised, now; `shown`: also what the API shows, which meets points of its own."""
        found = check(self._evidence(list_holdings(self.engine), shown=shown))
        return found or self.bounds.violations(self.service.database)

    def _seen_violations(self, *, shown: bool = False) -> list[str]:
        """The same, by a poll."""
        return check(self._evidence(self._socket.holdings(), shown=shown))

    def await_status(self, sandbox_id: str, status: Status) -> None:
        """Wait until the sandbox is at rest in that status, as `await_given` does."""

        def there() -> bool:
            with self.service.database.reading() as session:
                row = session.get_one(Sandbox, sandbox_id)
            return row.status == status and row.generation == row.observed_generation and row.lease_until is None

        self.await_given(there)

    def await_given(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so that an operation begins with.

        What the engine has refused once is tried again by the sweep: if it is not so soon, what is held back is let go
        until it is.
        """
        try:
            eventually(condition, deadline_seconds=SOON_SECONDS)
        except AssertionError:
            with self.released():
                eventually(condition)

    def clear(self) -> None:
        """Delete whatever is left, from whatever state it is in, see it gone, and begin with an empty page."""
        self._end_pools()
        with self.service.database.reading() as session:
            left = session.exec(select(Sandbox.id).where(Sandbox.desired != Desired.DELETED)).all()
        for sandbox_id in left:
            self.client.delete(sandbox_id)
        self.await_agreement(closely=False)
        with self.service.database.transaction() as session:
            for table in MADE:
                session.execute(delete(table))
        self.client.history, self.faulty.trouble = History(), None
        self.answers, self.died_at = [], None

    def _end_pools(self) -> None:
        """Empty the warm pools: no user can delete a warm sandbox."""
        with self.service.database.transaction() as session:
            for spec in filter(lambda spec: spec.warm_most, specs.list_specs(session)):
                specs.change(session, spec.id, {"warm_target": 0, "warm_most": 0})
        eventually(lambda: not self._has_pool())

    def _has_pool(self) -> bool:
        with self.service.database.reading() as session:
            return bool(warm_pool.count(session))

    def _is_busy(self) -> bool:
        """A cheap look before the thorough one."""
        with self.service.database.reading() as session:
            return session.exec(IS_BUSY).one()

    def _evidence(self, held: Holdings, *, shown: bool) -> Evidence:
        listed = list_statuses(self.service.url, [self.client.person]) if shown else None
        return gather(
            self.service.database,
            history=self.client.entries,
            held=held,
            installation=self.service.installation,
            neighbours=self._neighbours,
            listed=listed,
            excused=lambda row: row.spec_id in self._doomed,
        )

    def _has_node(self) -> bool:
        """Whether a sandbox would be placed at once; else its first message would never be sent."""
        with self.service.database.reading() as session:
            return placement.has_room(session, TINY_IMAGE)
