"""Options of commands: how long a request waits, and its idempotency key.

`?wait=seconds` and `Prefer: wait=seconds`: respond when the command has completed, or after that time.

`Idempotency-Key`: a POST repeated under the same key gets the stored response and changes nothing. A route depends on
`IdempotencyOption`. In the transaction of its request it calls `find` first and `keep` last.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import parse_qsl, urlencode

from fastapi import Depends, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from api.errors.handlers import validation_entry
from api.json_text import in_thread_if_large
from api.paths import query_of
from api.realtime.completion_waiter import AwaitedRow, Superseded
from api.request.authentication import CurrentCaller
from api.request.context import Context, ContextDep, JobQueue, JobQueueDep
from shared.clock import now
from shared.crypto import Vault
from shared.db.database import Session
from shared.models import IdempotencyKey
from shared.queue.jobs import Job
from shared.users import idempotency

# Below the usual timeouts of proxies.
MAX_SECONDS = 60
COMPLETED = "Operation-Settled"
# The former name, sent for one release.
FORMER = "Wish-Settled"
# The header's third value, besides true and false: another state is desired now.
SUPERSEDED = "superseded"
APPLIED = "Preference-Applied"
HEADERS = (COMPLETED, FORMER, APPLIED)
SECONDS = re.compile("[0-9]{1,9}")
INVALID = f"wait: a whole number of seconds from 0 to {MAX_SECONDS} is needed"

ResponseT = TypeVar("ResponseT")


@dataclass(frozen=True)
class Accepted(Generic[ResponseT]):
    """A committed command: its response as of the commit, the row to await and the jobs to enqueue."""

    response: ResponseT
    row: AwaitedRow
    jobs: tuple[Job, ...] = ()
    # Sandboxes that the command paused to make room. The row does not record them.
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

        A caller that does not wait gets the response before the jobs are published.

        Returns:
            Whether the request waited, which makes the answer as of the commit out of date.
        """
        if not self._seconds:
            self._queue.enqueue(*jobs)
            return False
        self._queue.enqueue_now(*jobs)
        completed = await self._settle(row)
        self._response.headers.update({COMPLETED: completed, FORMER: completed})
        return True

    def add_headers(self, response: ResponseT) -> ResponseT:
        """Copy this wait's headers to an answer that is a `Response` already: FastAPI leaves those as they are."""
        if isinstance(response, Response):
            headers = self._response.headers
            response.headers.update({name: headers[name] for name in HEADERS if name in headers})
        return response

    async def _settle(self, row: AwaitedRow) -> str:
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
        Query(ge=0, le=MAX_SECONDS, description="Respond when the command has completed, or after this many seconds"),
    ] = None,
    prefer: Annotated[
        list[str] | None,
        Header(description="`wait=seconds`, a whole number: as `wait` in the query, which takes precedence"),
    ] = None,
) -> AsyncIterator[Wait]:
    """Read how long this request may wait, and count it as waiting until its route returns.

    It counts before its command begins, because many requests may begin at a time. Other preferences are ignored
    (RFC 7240).

    Raises:
        TooManyRequests: too many requests of the caller wait. The command has not begun.
    """
    if wait is None and (seconds := _read_preference(prefer or [])) is not None:
        response.headers[APPLIED] = f"wait={seconds}"
        wait = seconds
    with context.limits.waiting.hold(request.state.caller.id) if wait else nullcontext():
        yield Wait(context, queue, request, response, wait or 0.0)


# The response is sent after the wait has ended.
WaitOption = Annotated[Wait, Depends(read_wait, scope="function")]


def _read_preference(headers: list[str]) -> int | None:
    """The first `wait` among the preferences."""
    found = (_split_preference(part) for header in headers for part in header.split(","))
    values = [value for name, value in found if name == "wait"]
    if not values:
        return None
    if not SECONDS.fullmatch(values[0]) or int(values[0]) > MAX_SECONDS:
        raise RequestValidationError([validation_entry(("header", "Prefer"), INVALID)])
    return int(values[0])


def _split_preference(text: str) -> tuple[str, str]:
    """The name of a preference in lower case, and its value without quotes; its parameters are left out."""
    name, _, value = text.partition(";")[0].partition("=")
    return name.strip().lower(), value.strip().removeprefix('"').removesuffix('"')


# --- idempotency keys -----------------------------------------------------------------------------------------------

HEADER = "Idempotency-Key"
REUSED = "another request has used this key: repeat that request, or use a new key"
SEVERAL = "the request has several keys that differ: send one"

Key = Annotated[
    str | None,
    Header(
        alias=HEADER,
        min_length=1,
        max_length=200,
        pattern="^[ -~]+$",
        description="A request repeated under the same key within 24 hours gets the first response",
    ),
]


@dataclass(frozen=True)
class StoredResponse:
    """The response to an earlier request under the same key."""

    document: dict[str, Any]
    status: int

    @property
    def response(self) -> JSONResponse:
        return JSONResponse(self.document, self.status)


class IdempotentRequest:
    """A request and its idempotency key, if it has one. Keys are scoped to one user and one operation."""

    def __init__(self, vault: Vault, owner_id: str, operation: str, key: str | None, fingerprint: str) -> None:
        """Take what identifies the request.

        Args:
            operation: method and path.
            key: the header's value; None: the request has none.
            fingerprint: of the operation, the query and the body.
        """
        self._vault = vault
        self._owner_id = owner_id
        self._operation = operation
        self._key = key
        self._fingerprint = fingerprint
        # Tells which responses are stored.
        self.is_success: Callable[[Any], bool] = lambda _response: True

    @property
    def has_key(self) -> bool:
        """Whether the request has a key, so that it may be repeated."""
        return self._key is not None

    def where(self, is_success: Callable[[Any], bool]) -> "IdempotentRequest":
        """The same request with another definition of success, for a route that reports a result as an error."""
        request = copy(self)
        request.is_success = is_success
        return request

    def find(self, session: Session) -> StoredResponse | None:
        """Return the stored response to this request, or None.

        Raises:
            RequestValidationError: another request has used the key.
        """
        if self._key is None:
            return None
        row = idempotency.find(session, self._owner_id, self._operation, self._key)
        if row is None:
            return None
        if row.fingerprint not in self._vault.digests(self._fingerprint):
            raise RequestValidationError([validation_entry(("header", HEADER), REUSED, "idempotency_key_reused")])
        return StoredResponse(row.answer, row.status)

    def keep(self, session: Session, response: BaseModel, status: int = 200) -> None:
        """Store the response if it is a success. It must contain no secret in plain text."""
        if self._key is None or not self.is_success(response):
            return
        row = IdempotencyKey(
            owner_id=self._owner_id,
            operation=self._operation,
            key=self._key,
            fingerprint=self._vault.digest(self._fingerprint),
            status=status,
            answer=response.model_dump(mode="json"),
            expires_at=now() + idempotency.RETENTION,
        )
        idempotency.keep(session, row)


async def read_key(request: Request, context: ContextDep, caller: CurrentCaller, key: Key = None) -> IdempotentRequest:
    """Return the request with its idempotency key. The same key may be sent several times.

    Raises:
        RequestValidationError: the request has several keys that differ.
    """
    if len(set(request.headers.getlist(HEADER))) > 1:
        raise RequestValidationError([validation_entry(("header", HEADER), SEVERAL, "several_idempotency_keys")])
    operation = f"{request.method} {request.scope['path']}"
    if not key:
        return IdempotentRequest(context.vault, caller.id, operation, None, "")
    body = await request.body()
    fingerprint = await in_thread_if_large(body, _fingerprint, request, operation, body)
    return IdempotentRequest(context.vault, caller.id, operation, key, fingerprint)


IdempotencyOption = Annotated[IdempotentRequest, Depends(read_key)]


def _fingerprint(request: Request, operation: str, body: bytes) -> str:
    params = sorted(parse_qsl(query_of(request), keep_blank_values=True))
    # How long to wait is not part of the desired state.
    query = urlencode([(name, value) for name, value in params if name != "wait"])
    content = b"\n".join([operation.encode(), query.encode(), _canonical(body)])
    return hashlib.sha256(content).hexdigest()


def _canonical(body: bytes) -> bytes:
    """Return the same bytes for equal JSON, regardless of whitespace and order of names."""
    try:
        return json.dumps(json.loads(body), sort_keys=True, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return body
