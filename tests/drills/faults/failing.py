"""A module that reaches failpoints, for `test_observer.py`."""

import sys
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from shared.observability import failpoints


@failpoints.around("engine.start")
def start() -> None:
    """Run two nested writes."""
    with failpoints.around("engine.put_file"):
        pass


@failpoints.around("engine.fail")
def fail() -> None:
    """Fail between the two points, so that the second is not reached."""
    raise ValueError


if __name__ == "__main__":
    failpoints.before("database.commit")
    for name in ("first", "second"):
        failpoints.begin(name)
        start()
        with ThreadPoolExecutor() as pool:
            pool.submit(copy_context().run, start).result()
    try:
        fail()
    except ValueError:
        sys.stdout.write("done\n")
