"""Tasks that are spread over several installations."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Event
from typing import Any

import pytest

from tests.drills.faults import lanes as module
from tests.drills.faults.lanes import Lanes


def test_interrupted_run_begins_no_further_task(monkeypatch: pytest.MonkeyPatch) -> None:
    is_interrupted, begun = Event(), list[int]()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            is_interrupted.set()
            super().shutdown(wait=wait)

    def work(_runner: Any, task: int) -> None:
        begun.append(task)
        assert task == 0 or is_interrupted.wait(10)

    monkeypatch.setattr(module, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(Lanes, "_make", lambda _self: (None, ExitStack()))
    nothing: Any = None
    lanes = Lanes(nothing, nothing, nothing, nothing, nothing, width=1)
    found = lanes.attempt(work, range(5))
    next(found)
    found.close()  # type: ignore[attr-defined]  # as an error or an interrupt in its caller does
    assert set(begun) <= {0, 1}
