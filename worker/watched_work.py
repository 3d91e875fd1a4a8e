"""Work that may take minutes, in a thread of its own, while its caller watches for a reason to stop waiting."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextvars import copy_context

WATCH_SECONDS = 1.0


def carry_out(work: Callable[[], None], watch: Callable[[], None]) -> None:
    """Do `work` and call `watch` every second meanwhile.

    Raises:
        Exception: what `work` raises; or what `watch` raises, and then nobody waits for `work` any longer: it ends by
            its own time limits.
    """
    done: Future[None] = Future()
    threading.Thread(target=copy_context().run, args=(_do, work, done), daemon=True, name="watched").start()
    while not wait([done], timeout=WATCH_SECONDS).done:
        watch()
    done.result()


def _do(work: Callable[[], None], done: Future[None]) -> None:
    try:
        work()
    except BaseException as error:  # noqa: BLE001 - the caller's thread raises it
        done.set_exception(error)
    else:
        done.set_result(None)
