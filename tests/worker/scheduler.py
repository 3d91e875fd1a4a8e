"""Scheduler of threads that run one at a time and switch only at points, in the order of a seed."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

# An actor that reaches no point in this time waits for a lock of another actor.
DEADLOCK_SECONDS = 20.0


class Crash(BaseException):
    """Crash of a process: it finishes nothing and handles no error."""


@dataclass(frozen=True)
class Fate:
    """Failure of an actor at one of its points.

    Args:
        at: the number of the point.
        sleep: None: the actor crashes. Else the actor stalls until all others have ended, and this function is called
            when the stall begins.
    """

    at: int
    sleep: Callable[[], None] | None = None


class Scheduler:
    """Scheduler with one order of events per seed and set of actors. `trace` records the order."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.trace: list[str] = []
        self._actors: dict[int, _Actor] = {}
        self._back = threading.Semaphore(0)

    def run(self, acts: Mapping[str, Callable[[], None]], fates: Mapping[str, Fate]) -> None:
        """Run all actors until they have ended; `fates` holds the failures by actor.

        Raises:
            AssertionError: the actors wait for each other, or one of them failed.
        """
        actors = [_Actor(name, act, self._back, fates.get(name)) for name, act in acts.items()]
        # Some actors are fast and some slow.
        weights = {actor.name: self.dice.choice((1, 5, 25)) for actor in actors}
        for actor in actors:
            actor.thread.start()
            self._actors[actor.thread.ident or 0] = actor
        while alive := [actor for actor in actors if not actor.ended]:
            awake = [actor for actor in alive if not actor.asleep] or alive
            self._resume(self.dice.choices(awake, [weights[actor.name] for actor in awake])[0])
        for actor in actors:
            actor.thread.join()
        _raise_first(actors)

    def point(self, name: str) -> None:
        """Reach a point, where another actor may run next. Threads that are no actors pass without effect."""
        actor = self._actors.get(threading.get_ident())
        if actor is None or actor.asleep:
            return  # after a stall no other actor is left
        self.trace.append(f"{actor.name}: {name}")
        actor.pause()

    def _resume(self, actor: "_Actor") -> None:
        actor.may_run.release()
        assert self._back.acquire(timeout=DEADLOCK_SECONDS), f"{actor.name} is stuck"


class _Actor:
    def __init__(self, name: str, act: Callable[[], None], back: threading.Semaphore, fate: Fate | None) -> None:
        self.name = name
        self.ended = False
        self.asleep = False
        self.error: BaseException | None = None
        self.may_run = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._act, self._back, self._fate = act, back, fate
        self._passed = 0

    def pause(self) -> None:
        """Wait until the scheduler resumes this actor, or fail as `fate` says."""
        self._passed += 1
        if self._fate is not None and self._passed == self._fate.at:
            if self._fate.sleep is None:
                raise Crash
            self._fate.sleep()
            self.asleep = True
        self._back.release()
        self.may_run.acquire()

    def _run(self) -> None:
        self.may_run.acquire()
        try:
            self._act()
        except Crash:
            pass
        except BaseException as error:  # noqa: BLE001 - `run` raises it
            self.error = error
        self.ended = True
        self._back.release()


def _raise_first(actors: Sequence[_Actor]) -> None:
    for actor in actors:
        if actor.error is not None:
            raise AssertionError(f"{actor.name} failed") from actor.error
