"""Figures of the requests of a load, for the transcript."""

from collections.abc import Sequence

from tests.cluster.load import Request

NOTICED_SECONDS = 1.0


def slow(requests: Sequence[Request]) -> list[Request]:
    """The requests that took noticeably long."""
    return [request for request in requests if request.seconds > NOTICED_SECONDS]


def too_slow(requests: Sequence[Request], quiet: str) -> list[Request]:
    """The slow requests that took over twice as long as the slowest of a quiet phase: a busy machine is always slow."""
    slowest = max(request.seconds for request in requests if request.phase == quiet)
    return [request for request in slow(requests) if request.seconds > 2 * slowest]


def rate(requests: Sequence[Request]) -> float:
    """The number of requests that began per second."""
    return (len(requests) - 1) / (requests[-1].began - requests[0].began) if len(requests) > 1 else 0.0


def describe(requests: Sequence[Request]) -> str:
    """The table of the phases, with a line for each slow request."""
    phases = list(dict.fromkeys(request.phase for request in requests))
    heading = f"{'':<24}{'requests':>9}{'per s':>7}{'failed':>7}{'median':>8}{'99 %':>8}{'longest':>8}{'> 1 s':>6}"
    lines = [_line(phase, [request for request in requests if request.phase == phase]) for phase in phases]
    return "\n".join([heading, *lines, *(f"{one.phase}: {one.name} {one.seconds:.2f} s" for one in slow(requests))])


def _line(phase: str, requests: Sequence[Request]) -> str:
    requests = sorted(requests, key=lambda request: request.began)
    seconds = sorted(request.seconds for request in requests)
    failed = sum(bool(request.failure) for request in requests)
    middle, high = seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100]
    times = "".join(f"{value * 1000:>5.0f} ms" for value in (middle, high, seconds[-1]))
    return f"{phase:<24}{len(seconds):>9}{rate(requests):>7.1f}{failed:>7}{times}{len(slow(requests)):>6}"
