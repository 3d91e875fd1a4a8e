"""`?wait=seconds` and `Prefer: wait=seconds`: the answer comes when the wish is settled, or the time is up."""

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from fastapi import Depends, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool

from api.errors.handlers import validation_entry
from api.realtime.completion_waiter import AwaitedRow, Superseded
from api.request.context import Context, ContextDep
from api.request.jobs import JobQueue, JobQueueDep
from shared.queue.jobs import Job

# Less than the patience of proxies.
MAX_SECONDS = 60
COMPLETED = "Operation-Settled"
# The former name, sent for one release.
FORMER = "Wish-Settled"
# What it says besides true and false: another state is desired by now.
SUPERSEDED = "superseded"
APPLIED = "Preference-Applied"
SAID = (COMPLETED, FORMER, APPLIED)
PREFERENCE = re.compile(r'\s*wait\s*(?:=\s*"?([^";]*?)"?\s*)?(?:;.*)?', re.IGNORECASE | re.DOTALL)
WRONG = f"wait: a whole number of seconds from 0 to {MAX_SECONDS} is needed"

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Accepted(Generic[Answer]):
    """What a request has come to: committed, but perhaps not settled yet."""

    # As of the commit.
    answer: Answer
    jobs: tuple[Job, ...] = ()
    # What is to settle; None: all is settled already.
    awaited_row: AwaitedRow | None = None
    # The answer once more, as things are then; None: it says nothing of them.
    look: Callable[[], Answer] | None = None

    def written(self, write: Callable[[Answer], Response]) -> "Accepted[Response]":
        """The same with answers that are written where they are made: in a thread, and not on the event loop."""
        look = self.look
        return Accepted(
            write(self.answer), self.jobs, self.awaited_row, None if look is None else lambda: write(look())
        )


class Wait:
    """One request, and how many seconds it may wait; zero: not at all."""

    def __init__(self, context: Context, queue: JobQueue, request: Request, response: Response, seconds: float) -> None:
        """Take what it needs; `response` is the one whose headers are sent with the answer."""
        self._context = context
        self._queue = queue
        self._request = request
        self._response = response
        self._seconds = seconds

    async def see(self, wish: Callable[[], Accepted[Answer]]) -> Answer:
        """Wish, then wait for what becomes of it, if the caller wants to.

        Args:
            wish: writes the wish, in a thread; it has committed when it returns.
        """
        wished = await run_in_threadpool(wish)
        if not self._seconds:
            self._queue.enqueue(*wished.jobs)
            self._give_headers(wished.answer)
            return wished.answer
        self._queue.enqueue_now(*wished.jobs)
        settled = "true" if wished.awaited_row is None else await self._await(wished.awaited_row)
        answer = await run_in_threadpool(wished.look) if wished.awaited_row and wished.look else wished.answer
        self._response.headers.update({COMPLETED: settled, FORMER: settled})
        self._give_headers(answer)
        return answer

    async def _await(self, awaited_row: AwaitedRow) -> str:
        """The value of `Operation-Settled`."""
        waiting = asyncio.create_task(self._context.waiter.settle(awaited_row, self._seconds))
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
        """Return when the caller has gone: nobody waits any more."""
        while (await self._request.receive())["type"] != "http.disconnect":
            pass

    def _give_headers(self, answer: object) -> None:
        # An answer that is made already is not given the headers of FastAPI's own.
        if isinstance(answer, Response):
            said = self._response.headers
            answer.headers.update({name: said[name] for name in SAID if name in said})


async def read_wait(
    context: ContextDep,
    queue: JobQueueDep,
    request: Request,
    response: Response,
    wait: Annotated[
        float | None,
        Query(ge=0, le=MAX_SECONDS, description="Answer when the wish is settled, or after so many seconds"),
    ] = None,
    prefer: Annotated[
        list[str] | None, Header(description="`wait=seconds`, whole ones: the same; `wait` in the query goes before")
    ] = None,
) -> Wait:
    """How long this request may wait. Other preferences are ignored, as RFC 7240 has it."""
    if wait is None and (seconds := _read_preference(prefer or [])) is not None:
        response.headers[APPLIED] = f"wait={seconds}"
        wait = seconds
    return Wait(context, queue, request, response, wait or 0.0)


WaitOption = Annotated[Wait, Depends(read_wait)]


def _read_preference(headers: list[str]) -> int | None:
    """The first `wait` among the preferences.

    Raises:
        RequestValidationError: it is no number of seconds that we would wait.
    """
    found = (PREFERENCE.fullmatch(part) for header in headers for part in header.split(","))
    values = [match[1] or "" for match in found if match]
    if not values:
        return None
    if not (values[0].isascii() and values[0].isdigit() and int(values[0]) <= MAX_SECONDS):
        raise RequestValidationError([validation_entry(("header", "Prefer"), WRONG)])
    return int(values[0])
