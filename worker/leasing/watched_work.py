"""Work that may take minutes, in a thread of its own, while its caller watches for a reason to stop waiting."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import ContextVar, copy_context

WATCH_SECONDS = 1.0
# Set once the caller of the work in this context has stopped waiting for it.
_abandoned: ContextVar[threading.Event | None] = ContextVar("abandoned", default=None)


class Abandoned(Exception):
    """The caller of this work has stopped waiting for it."""


def run_watched(work: Callable[[], None], watch: Callable[[], None], patience: float = 0.0) -> None:
    """Do `work` and call `watch` every second meanwhile, the first time after `patience` seconds at the earliest.

    Raises:
        Exception: what `work` raises; or what `watch` raises, and then `work` is abandoned: it ends by its own time
            limits, or where it calls `require_awaited`.
    """
    abandoned = threading.Event()
    token = _abandoned.set(abandoned)
    try:
        _carry_out(work, watch, patience)
    except BaseException:
        abandoned.set()
        raise
    finally:
        _abandoned.reset(token)


def require_awaited() -> None:
    """Refuse to go on with work that its caller has abandoned.

    Raises:
        Abandoned: the caller no longer waits.
    """
    abandoned = _abandoned.get()
    if abandoned is not None and abandoned.is_set():
        raise Abandoned


def _carry_out(work: Callable[[], None], watch: Callable[[], None], patience: float) -> None:
    done: Future[None] = Future()
    threading.Thread(target=copy_context().run, args=(_do, work, done), daemon=True, name="watched").start()
    seconds = max(patience, WATCH_SECONDS)
    while not wait([done], timeout=seconds).done:
        watch()
        seconds = WATCH_SECONDS
    done.result()


def _do(work: Callable[[], None], done: Future[None]) -> None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
        done.set_exception(error)
    else:
        done.set_result(None)
