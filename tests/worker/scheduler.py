"""Threads that run one at a time, and change places only where they come by a point, as a seed says."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random

# An actor that does not come by a point for so long is in a lock that another one holds.
DEADLOCK_SECONDS = 20.0


class Crash(BaseException):
    """A process's death: nothing it has begun is finished, not even an error handled."""


@dataclass(frozen=True)
class Fate:
    """What befalls an actor at one of the points they come by.

    Args:
        at: the number of the point.
        sleep: None: they die. Else they stand still until all the others have ended, and this is done as they fall
            asleep.
    """

    at: int
    sleep: Callable[[], None] | None = None


class Scheduler:
    """The same seed and the same actors: the same order of events. `trace` tells it."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.trace: list[str] = []
        self._actors: dict[int, _Actor] = {}
        self._back = threading.Semaphore(0)

    def run(self, acts: Mapping[str, Callable[[], None]], fates: Mapping[str, Fate]) -> None:
        """Let all of them act until they have ended; `fates` befall some of them.

        Raises:
            AssertionError: they are waiting for each other, or one of them failed.
        """
        actors = [_Actor(name, act, self._back, fates.get(name)) for name, act in acts.items()]
        # Some are quick and some slow.
        weights = {actor.name: self.dice.choice((1, 5, 25)) for actor in actors}
        for actor in actors:
            actor.thread.start()
            self._actors[actor.thread.ident or 0] = actor
        while alive := [actor for actor in actors if not actor.ended]:
            awake = [actor for actor in alive if not actor.asleep] or alive
            self._let(self.dice.choices(awake, [weights[actor.name] for actor in awake])[0])
        for actor in actors:
            actor.thread.join()
        _raise_first(actors)

    def point(self, name: str) -> None:
        """Come by a point: the others may be next. For anybody else than the actors there are none."""
        actor = self._actors.get(threading.get_ident())
        if actor is None or actor.asleep:
            return  # of one who has slept nobody is left to change places with
        self.trace.append(f"{actor.name}: {name}")
        actor.step_aside()

    def _let(self, actor: "_Actor") -> None:
        actor.turn.release()
        assert self._back.acquire(timeout=DEADLOCK_SECONDS), f"{actor.name} is stuck"


class _Actor:
    """Somebody who acts when it is their turn."""

    def __init__(self, name: str, act: Callable[[], None], back: threading.Semaphore, fate: Fate | None) -> None:
        self.name = name
        self.ended = False
        self.asleep = False
        self.error: BaseException | None = None
        self.turn = threading.Semaphore(0)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._act, self._back, self._fate = act, back, fate
        self._passed = 0

    def step_aside(self) -> None:
        """Wait for the next turn, unless fate has it otherwise."""
        self._passed += 1
        if self._fate is not None and self._passed == self._fate.at:
            if self._fate.sleep is None:
                raise Crash
            self._fate.sleep()
            self.asleep = True
        self._back.release()
        self.turn.acquire()

    def _run(self) -> None:
        self.turn.acquire()
        try:
            self._act()
        except Crash:
            pass
        except BaseException as error:  # noqa: BLE001 - told by `run`
            self.error = error
        self.ended = True
        self._back.release()


def _raise_first(actors: Sequence[_Actor]) -> None:
    for actor in actors:
        if actor.error is not None:
            raise AssertionError(f"{actor.name} failed") from actor.error
