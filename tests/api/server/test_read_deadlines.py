"""The deadline of a client that has to read: each pause of a response's writes starts a new one."""

import asyncio
from collections.abc import Callable

from api.server.limits import ConnectionLimits
from api.server.read_deadlines import ReadDeadline

MIB = 1024 * 1024


class Transport:
    def __init__(self) -> None:
        self.unread = 0
        self.is_aborted = False

    def get_write_buffer_size(self) -> int:
        return self.unread

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True


class Handle:
    def __init__(self, at: float, call: Callable[[], object]) -> None:
        self.at, self.call, self.is_cancelled = at, call, False

    def cancel(self) -> None:
        self.is_cancelled = True


class Clock:
    """The parts of an event loop that a deadline uses, with a time that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0
        self.handles: list[Handle] = []

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[[], object]) -> Handle:
        self.handles.append(Handle(self.now + seconds, call))
        return self.handles[-1]

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for handle in [each for each in self.handles if each.at <= self.now and not each.is_cancelled]:
            handle.cancel()
            handle.call()


class Connection(ReadDeadline, asyncio.Protocol):
    def __init__(self) -> None:
        self.loop, self.transport, self.limits = Clock(), Transport(), ConnectionLimits()  # type: ignore[assignment]


def test_large_response_after_a_small_unread_one_has_its_own_deadline() -> None:
    connection = Connection()
    clock, transport = connection.loop, connection.transport
    assert isinstance(clock, Clock)
    assert isinstance(transport, Transport)
    transport.unread = 10
    connection.start_read_deadline()
    clock.advance(50)
    transport.unread = 100 * MIB
    connection.pause_writing()
    transport.unread = 50 * MIB  # within ten seconds
    clock.advance(15)
    assert not transport.is_aborted
    clock.advance(60)  # nothing was read since
    clock.advance(60)
    assert transport.is_aborted
