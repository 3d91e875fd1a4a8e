"""`?wait=seconds` and `Prefer: wait=seconds`: answer when the command has completed, or after that time."""

import asyncio
import re
from dataclasses import dataclass, field
from typing import Annotated, Generic, TypeVar

from fastapi import Depends, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError

from api.errors.handlers import validation_entry
from api.realtime.completion_waiter import AwaitedRow, Superseded
from api.request.context import Context, ContextDep, JobQueue, JobQueueDep
from shared.queue.jobs import Job

# Below the usual timeouts of proxies.
MAX_SECONDS = 60
COMPLETED = "Operation-Settled"
# The former name, sent for one release.
FORMER = "Wish-Settled"
# The header's third value, besides true and false: another state is desired by now.
SUPERSEDED = "superseded"
APPLIED = "Preference-Applied"
HEADERS = (COMPLETED, FORMER, APPLIED)
PREFERENCE = re.compile(r'\s*wait\s*(?:=\s*"?([^";]*?)"?\s*)?(?:;.*)?', re.IGNORECASE | re.DOTALL)
INVALID = f"wait: a whole number of seconds from 0 to {MAX_SECONDS} is needed"

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Accepted(Generic[Answer]):
    """A committed command: its answer as of the commit, the row to await and the jobs to enqueue."""

    answer: Answer
    row: AwaitedRow
    jobs: tuple[Job, ...] = ()
    # Sandboxes that the command paused to make room. The row does not hold them.
    paused_sandbox_ids: list[str] = field(default_factory=list)


class Wait:
    """How long one request waits; 0 seconds: it does not wait."""

    def __init__(self, context: Context, queue: JobQueue, request: Request, response: Response, seconds: float) -> None:
        """Wait for `request`; `response` is the one whose headers FastAPI sends with the answer."""
        self._context = context
        self._queue = queue
        self._request = request
        self._response = response
        self._seconds = seconds

    async def until_complete(self, row: AwaitedRow, *, jobs: tuple[Job, ...]) -> bool:
        """Enqueue the jobs of a committed command, and wait for its row if the caller asked for that.

        A caller that does not wait is answered before the jobs are published.

        Returns:
            Whether the request waited: the answer as of the commit is out of date.
        """
        if not self._seconds:
            self._queue.enqueue(*jobs)
            return False
        self._queue.enqueue_now(*jobs)
        completed = await self._await(row)
        self._response.headers.update({COMPLETED: completed, FORMER: completed})
        return True

    def add_headers(self, answer: Answer) -> Answer:
        """Copy this wait's headers to an answer that is a `Response` already: FastAPI leaves those as they are."""
        if isinstance(answer, Response):
            headers = self._response.headers
            answer.headers.update({name: headers[name] for name in HEADERS if name in headers})
        return answer

    async def _await(self, row: AwaitedRow) -> str:
        """The value of `Operation-Settled`."""
        waiting = asyncio.create_task(self._context.waiter.settle(row, self._seconds))
        leaving = asyncio.create_task(self._watch_caller())
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            return str(waiting.done() and waiting.result()).lower()
        except Superseded:
            return SUPERSEDED
        finally:
            waiting.cancel()
            leaving.cancel()

    async def _watch_caller(self) -> None:
        """Return when the caller has disconnected."""
        while (await self._request.receive())["type"] != "http.disconnect":
            pass


async def read_wait(
    context: ContextDep,
    queue: JobQueueDep,
    request: Request,
    response: Response,
    wait: Annotated[
        float | None,
        Query(ge=0, le=MAX_SECONDS, description="Answer when the command has completed, or after this many seconds"),
    ] = None,
    prefer: Annotated[
        list[str] | None,
        Header(description="`wait=seconds`, a whole number: as `wait` in the query, which takes precedence"),
    ] = None,
) -> Wait:
    """Read how long this request may wait. Other preferences are ignored (RFC 7240)."""
    if wait is None and (seconds := _read_preference(prefer or [])) is not None:
        response.headers[APPLIED] = f"wait={seconds}"
        wait = seconds
    return Wait(context, queue, request, response, wait or 0.0)


WaitOption = Annotated[Wait, Depends(read_wait)]


def _read_preference(headers: list[str]) -> int | None:
    """The first `wait` among the preferences.

    Raises:
        RequestValidationError: its value is not a whole number of seconds from 0 to `MAX_SECONDS`.
    """
    found = (PREFERENCE.fullmatch(part) for header in headers for part in header.split(","))
    values = [match[1] or "" for match in found if match]
    if not values:
        return None
    if not (values[0].isascii() and values[0].isdigit() and int(values[0]) <= MAX_SECONDS):
        raise RequestValidationError([validation_entry(("header", "Prefer"), INVALID)])
    return int(values[0])
