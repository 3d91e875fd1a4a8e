"""The setup of a run before its first stage."""

import signal
from collections.abc import Iterator

import pytest

from tests.stages.__main__ import main


@pytest.fixture(autouse=True)
def restore_signals() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_interrupts_work_in_a_run_that_a_shell_started_in_the_background() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with pytest.raises(SystemExit, match="there is no part unknown"):
        main(["nightly", "unknown"])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
