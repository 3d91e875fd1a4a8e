"""Work that may take minutes, run in its own thread while the caller checks whether to stop waiting."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import ContextVar, copy_context

WATCH_SECONDS = 1.0
# Set when the caller of the work in this context stops waiting for it.
_abandoned: ContextVar[threading.Event | None] = ContextVar("abandoned", default=None)


class Abandoned(Exception):
    """Raised in work whose caller has stopped waiting for it."""


def run_watched(work: Callable[[], None], watch: Callable[[], None], patience: float = 0.0) -> None:
    """Run `work`, and call `watch` every second meanwhile, first after `patience` seconds or one second.

    Raises:
        Exception: any error of `work` or `watch`. After an error of `watch`, `work` is abandoned: it ends by its own
            timeouts, or where it calls `require_awaited`.
    """
    abandoned = threading.Event()
    token = _abandoned.set(abandoned)
    try:
        _run_in_thread(work, watch, patience)
    except BaseException:
        abandoned.set()
        raise
    finally:
        _abandoned.reset(token)


def require_awaited() -> None:
    """Stop work that its caller has abandoned.

    Raises:
        Abandoned: the caller no longer waits for the work.
    """
    abandoned = _abandoned.get()
    if abandoned is not None and abandoned.is_set():
        raise Abandoned


def _run_in_thread(work: Callable[[], None], watch: Callable[[], None], first_seconds: float) -> None:
    done: Future[None] = Future()
    threading.Thread(target=copy_context().run, args=(_run, work, done), daemon=True, name="watched").start()
    seconds = max(first_seconds, WATCH_SECONDS)
    while not wait([done], timeout=seconds).done:
        watch()
        seconds = WATCH_SECONDS
    done.result()


def _run(work: Callable[[], None], done: Future[None]) -> None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
        done.set_exception(error)
    else:
        done.set_result(None)
