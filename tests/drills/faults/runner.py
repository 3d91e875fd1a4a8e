"""An installation whose processes are killed at requested points, restarted, and checked against the promise."""

import math
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import httpx
from sqlmodel import select

from shared.models import Sandbox
from shared.nodes import placement
from shared.sandboxes import specs
from shared.states import Desired, Status
from shared.warm_pool import pool as warm_pool
from tests import effort
from tests.drills.bounds import Bounds
from tests.drills.checker import check
from tests.drills.engine_listing import Holdings, list_holdings
from tests.drills.engine_socket import EngineSocket
from tests.drills.evidence import Evidence
from tests.drills.faults.crash_states import Hit
from tests.drills.faults.observer import VARIABLE
from tests.drills.faults.points import Points
from tests.drills.faults.tables import empty_tables, is_busy
from tests.drills.gathering import gather
from tests.drills.history import History, RecordingClient
from tests.drills.wire_listing import list_statuses
from tests.factories import make_user
from tests.services.deployment import Deployment
from tests.services.engine import TINY_IMAGE
from tests.services.faulty_engine import FaultyEngine
from tests.services.private_engine import PrivateEngine
from tests.waiting import eventually, pause

PROCESSES = ("api", "worker")
# The promised time from the last fault to agreement.
AGREEMENT_SECONDS = 30.0
# How long an idle process may take to reach the point at which it is to be killed.
REACH_SECONDS = 20.0
# If a settled process reaches no new point for this time, it will reach none.
QUIET_SECONDS = 0.2
POLL_SECONDS = 0.05
# The preparation of an operation takes no longer than this, unless the engine refuses a request.
SOON_SECONDS = 10.0


class Runner:
    """One installation, its history, and the control of its processes.

    Args:
        faulty: the proxy by which the service reaches the engine.
        registry: the repository from which images can be pulled.
        bounds: the isolation of its sandboxes.
        may_fail: the specs whose sandboxes may fail.
        neighbours: the installations that use or have used the engine.
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
        may_fail: frozenset[str],
        neighbours: Collection[str],
    ) -> None:
        self.client = RecordingClient(service.url, make_user(service.database, "alice"))
        self.service = service
        self.engine, self.faulty = engine, faulty
        self.registry = registry
        self.bounds = bounds
        self.points = {name: Points(name, directory / name) for name in PROCESSES}
        # The responses to the operation's requests; None: no response.
        self.responses: list[httpx.Response | None] = []
        # The point of the last death in the operation.
        self.died_at: str | None = None
        # The seconds from each kill to agreement.
        self.recoveries: list[float] = []
        self._socket = EngineSocket(engine.host)
        self._may_fail = may_fail
        self._neighbours = neighbours
        self._settings: Mapping[str, str] = {}

    # --- processes ------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start both processes."""
        for name in PROCESSES:
            self.start_process(name)
        eventually(self._has_node)

    def start_process(self, name: str) -> None:
        """Start a process."""
        self.service.environment[VARIABLE] = str(self.points[name].directory)
        if name == "api":
            self.service.start_api(**self._settings)
        else:
            self.service.start_worker(**self.bounds.settings, **self._settings)

    def adopt(self, settings: Mapping[str, str]) -> None:
        """Set additional settings; restart the processes if these change."""
        if settings != self._settings:
            self._settings = settings
            for name in PROCESSES:
                self.service.kill(name)
            self.start()

    def hold(self, routines: Iterable[str] = ()) -> None:
        """Hold these of the worker's routines, and release all others."""
        self.points["worker"].hold(routines)

    @contextmanager
    def released(self) -> Iterator[None]:
        """Release all routines for the length of the block."""
        held = self.points["worker"].held()
        self.hold()
        try:
            yield
        finally:
            self.hold(held)

    def is_dead(self, process: str) -> bool:
        """Whether the process has been killed at its point."""
        code = self.service.exit_code(process)
        assert code in (None, -signal.SIGKILL), f"{process} ended with {code}"
        return code is not None

    # --- faults ---------------------------------------------------------------------------------------------------

    def record(
        self, act: Callable[[], None], operations: frozenset[str], *, idle_seconds: float = math.inf
    ) -> list[Hit] | None:
        """Run `act`, and record the hits of these operations' points until everything has settled.

        Return None if it does not settle: a routine may have been held in the middle of the missing work.

        Args:
            idle_seconds: everything has also settled after this time at rest without a hit.
        """
        self.forget(PROCESSES)
        act()
        hits: list[Hit] = []
        since = time.monotonic()
        deadline = since + AGREEMENT_SECONDS
        while time.monotonic() < since + (QUIET_SECONDS if hits else idle_seconds) or not self.is_at_rest():
            if time.monotonic() > deadline:
                return None
            if hits != (hits := self.hits(operations)):
                since = time.monotonic()
            time.sleep(POLL_SECONDS)
        return self.hits(operations)  # includes hits just before everything settled

    def forget(self, processes: Iterable[str]) -> None:
        """Clear the hits of these processes."""
        for process in processes:
            self.points[process].forget()

    def hits(self, operations: frozenset[str]) -> list[Hit]:
        """The hits of these operations' points since `record` began."""
        found = (each for points in self.points.values() for each in points.hits())
        return [each for each in found if each.point.rsplit("/", 2)[0] in operations]

    def dies_at(self, process: str, point: str, act: Callable[[], None]) -> bool:
        """Run `act` with the process armed; return whether it died at the point before everything settled."""
        self.arm(process, point)
        act()
        died = self.await_death(process)
        self.died_at = point if died else self.died_at
        return died

    def arm(self, process: str, point: str) -> None:
        """Make the process kill itself at the point."""
        self.points[process].arm(point)

    def disarm(self, process: str) -> None:
        """Cancel the kill, if the process is alive."""
        self.points[process].disarm()

    def await_death(self, process: str) -> bool:
        """Wait until the armed process has died; return False if everything settles first, or never settles.

        It may never settle because a held routine has to finish its round.
        """
        points, rested_at = self.points[process], None
        deadline = time.monotonic() + AGREEMENT_SECONDS
        while points.is_armed():
            rested_at = (rested_at or time.monotonic()) if self.is_at_rest() else None
            gives_up_at = deadline if rested_at is None else rested_at + REACH_SECONDS
            if time.monotonic() > gives_up_at and points.disarm():
                return False
            time.sleep(POLL_SECONDS)
        eventually(lambda: self.is_dead(process))
        return True

    # --- agreement ------------------------------------------------------------------------------------------------

    def await_agreement(self, *, closely: bool = True) -> None:
        """Wait until the promise is kept and the API shows it; `closely`: by the full check, not only by polls."""
        began = time.monotonic()
        while (
            is_busy(self.service.database)
            or self._seen_violations(shown=True)
            or (closely and self.violations(shown=True))
        ):
            assert time.monotonic() < began + AGREEMENT_SECONDS, self.violations(shown=True)
            pause(began, POLL_SECONDS)

    def is_at_rest(self) -> bool:
        """Whether no row is due or leased and the promise is kept, as far as a poll shows."""
        return not is_busy(self.service.database) and not self._seen_violations()

    def violations(self, *, shown: bool = False) -> list[str]:
        """The violations of the promise now; `shown`: also in what the API lists, by requests that reach points.

        With `--thorough`, the engine is listed by the docker command, and otherwise as in each poll: two commands take
        50 ms of CPU time, and `test_engine_listing` compares the listings.
        """
        held = list_holdings(self.engine) if effort.is_thorough() else self._socket.holdings()
        found = check(self._evidence(held, shown=shown))
        return found or self.bounds.violations(self.service.database)

    def _seen_violations(self, *, shown: bool = False) -> list[str]:
        """The violations of the promise that a poll shows."""
        return check(self._evidence(self._socket.holdings(), shown=shown))

    def await_status(self, sandbox_id: str, status: Status) -> None:
        """Wait until the sandbox has settled in the status, as `await_given` does."""

        def has_status() -> bool:
            with self.service.database.reading() as session:
                row = session.get_one(Sandbox, sandbox_id)
            return row.status == status and row.generation == row.observed_generation and row.lease_until is None

        self.await_given(has_status)

    def await_given(self, condition: Callable[[], bool]) -> None:
        """Wait for a precondition of an operation.

        If the engine refused a request, only the sweep retries it. So if the condition is not soon true, release the
        held routines until it is.
        """
        try:
            eventually(condition, deadline_seconds=SOON_SECONDS)
        except AssertionError:
            with self.released():
                eventually(condition)

    def clear(self) -> None:
        """Delete every sandbox, in whatever state it is, and all rows and records of the operation."""
        self._end_pools()
        with self.service.database.reading() as session:
            left = session.exec(select(Sandbox.id).where(Sandbox.desired != Desired.DELETED)).all()
        for sandbox_id in left:
            self.client.delete(sandbox_id)
        self.await_agreement(closely=False)
        empty_tables(self.service.database)
        self.client.history, self.faulty.failure = History(), None
        self.responses, self.died_at = [], None

    def _end_pools(self) -> None:
        """Empty the warm pools, because no user can delete a warm sandbox."""
        with self.service.database.transaction() as session:
            for spec in filter(lambda spec: spec.warm_most, specs.list_specs(session)):
                specs.change(session, spec.id, {"warm_target": 0, "warm_most": 0})
        eventually(lambda: not self._has_pool())

    def _has_pool(self) -> bool:
        with self.service.database.reading() as session:
            return bool(warm_pool.count(session))

    def _evidence(self, held: Holdings, *, shown: bool) -> Evidence:
        listed = list_statuses(self.service.url, [self.client.user]) if shown else None
        return gather(
            self.service.database,
            history=self.client.entries,
            held=held,
            installation=self.service.installation,
            neighbours=self._neighbours,
            listed=listed,
            is_expected=lambda row: row.spec_id in self._may_fail,
        )

    def _has_node(self) -> bool:
        """Whether a sandbox can be placed; without a node, its start would send no message."""
        with self.service.database.reading() as session:
            return placement.has_room(session, TINY_IMAGE)
