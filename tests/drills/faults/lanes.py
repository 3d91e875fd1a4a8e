"""Several installations on one engine and one broker, so that some work while others wait."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from ipaddress import IPv4Network
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import ClassVar, TypeVar

from shared.ids import new_id
from shared.sandboxes import specs
from shared.users import llm_profile_store, settings_store
from tests.drills.bounds import Bounds
from tests.drills.faults.operations.settings import SETTINGS, store_tokens
from tests.drills.faults.runner import Runner
from tests.drills.faults.specs import MAY_FAIL, MISSING, NAMED_IMAGE, PULLED, SPECS
from tests.services.deployment import Deployment, deployed
from tests.services.deployment_settings import SHORTEST
from tests.services.faulty_engine import running_faulty_engine
from tests.services.listening import listening
from tests.services.private_engine import PrivateEngine
from tests.services.registry import Registry
from tests.services.slots import is_unused, taken_slot
from tests.services.stores import Stores
from tests.services.valkey import Valkey

# The profile that an agent server receives before each conversation without a title.
TITLES = {"model": "openai/titles", "api_key": "unused"}

Task = TypeVar("Task")
Result = TypeVar("Result")


class Lanes:
    """Runners that are created on first use, and replaced after a failure."""

    _numbers = count(1)
    # All installations of this process, even closed ones, which may have left containers on the engine.
    _installations: ClassVar[set[str]] = set()

    def __init__(
        self,
        engine: PrivateEngine,
        registry: Registry,
        stores: Stores,
        valkey: Valkey,
        directory: Path,
        width: int,
    ) -> None:
        self._context = engine, registry, stores, valkey, directory
        self._width = width
        self._free: SimpleQueue[tuple[Runner, ExitStack] | None] = SimpleQueue()
        for _ in range(width):
            self._free.put(None)

    def spread(self, work: Callable[[Runner, Task], Result], tasks: Sequence[Task]) -> list[Result]:
        """Run tasks in parallel, one per lane; return their results in order.

        Raises:
            ExceptionGroup: some tasks failed; all were run.
        """
        outcomes = dict(self.attempt(work, tasks))
        failures = [outcome for outcome in outcomes.values() if isinstance(outcome, Exception)]
        if failures:
            raise ExceptionGroup(f"{len(failures)} of {len(tasks)} failed", failures)
        return [outcomes[number] for number in range(len(tasks))]  # type: ignore[misc]

    def attempt(
        self, work: Callable[[Runner, Task], Result], tasks: Sequence[Task]
    ) -> Iterator[tuple[int, Result | Exception]]:
        """Run tasks in parallel; yield the number and the result or error of each as it ends."""
        pool = ThreadPoolExecutor(self._width)
        try:
            futures = {pool.submit(self._in_lane, work, task): number for number, task in enumerate(tasks)}
            for future in as_completed(futures):
                yield futures[future], future.result()
        finally:
            # An interrupted run reports what it has found, without running all other tasks first.
            pool.shutdown(cancel_futures=True)

    def close(self) -> None:
        """Stop the processes of all lanes in parallel."""
        lanes = [self._free.get() for _ in range(self._free.qsize())]
        with ThreadPoolExecutor(self._width) as pool:
            list(pool.map(lambda lane: lane[1].close(), filter(None, lanes)))

    def _in_lane(self, work: Callable[[Runner, Task], Result], task: Task) -> Result | Exception:
        lane = self._free.get()
        try:
            lane = lane or self._make()
            return work(lane[0], task)
        except Exception as error:  # noqa: BLE001 - any error is this task's outcome
            if lane is not None:
                error.add_note(f"{task}\n{lane[0].service.log()[-3000:]}")
                lane[1].close()
                lane = None
            return error
        finally:
            self._free.put(lane)

    def _make(self) -> tuple[Runner, ExitStack]:
        engine, registry, stores, valkey, directory = self._context
        # A unique name, because bridges and firewall tables have it: another run on this machine may have lanes, too.
        name = f"test-lane-{next(self._numbers)}-{new_id()[:6]}"
        self._installations.add(name)
        own = directory / name
        own.mkdir()
        with ExitStack() as context:
            url = context.enter_context(stores.fresh())
            faulty = context.enter_context(running_faulty_engine(engine))
            network = context.enter_context(taken_slot(lambda slot: is_unused(slot.network))).network
            service = context.enter_context(
                deployed(
                    faulty,
                    database_url=url,
                    broker_url=valkey.url,
                    installation=name,
                    settings=SHORTEST,
                    launcher="tests.drills.faults.observer",
                )
            )
            for image, env in SPECS.items():
                service.add_spec(image, env)
            egress_port = context.enter_context(listening(str(network[1])))
            # Each lane pulls and removes its own image.
            mine = f"{registry.address}/{name}"
            pulled, missing = (f"{mine}/{image}" for image in (PULLED, MISSING))
            service.prepare(pulled, missing)
            may_fail = MAY_FAIL | {missing}
            runner = Runner(
                service,
                engine,
                faulty,
                mine,
                own,
                bounds=_bounds(service, engine, network, egress_port),
                may_fail=may_fail,
                neighbours=self._installations,
            )
            with service.database.transaction() as session:
                specs.change(session, NAMED_IMAGE, {"egress": "allowed.example"})
                owner = runner.client.user.id
                settings_store.change(session, service.vault, owner, SETTINGS | {"title_llm_profile": "titles"})
                llm_profile_store.save(
                    session, service.vault, owner, "titles", TITLES, include_secrets=True, keep_key=False
                )
            runner.start()
            store_tokens(runner)
            return runner, context.pop_all()
        raise AssertionError


def _bounds(service: Deployment, engine: PrivateEngine, network: IPv4Network, egress_port: int) -> Bounds:
    node, var = (service.environment[name] for name in ("AW_NODE", "AW_VAR_DIR"))
    return Bounds(engine, service.installation, node, network, service.door_port, Path(var), egress_port)
