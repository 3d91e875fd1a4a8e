"""`Idempotency-Key`: a POST that is sent again under the same key gets the same answer, and makes nothing new.

A route asks for `OnlyOnce`, and in the transaction of its wish calls `find` first and `keep` last.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

from fastapi import Depends, Header, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlmodel import Session

from api.errors.handlers import validation_entry
from api.json_text import in_thread_if_large
from api.request.authentication import Caller, CurrentCaller
from api.request.context import Context, ContextDep
from shared.clock import now
from shared.models import IdempotencyKey
from shared.users import idempotency

HEADER = "Idempotency-Key"
REUSED = "this key came with another request before: send that one again, or take a new key for this one"

Key = Annotated[
    str | None,
    Header(
        alias=HEADER,
        min_length=1,
        max_length=200,
        pattern="^[ -~]+$",
        description="Sent again under the same key within 24 hours, a request gets the first one's answer",
    ),
]


@dataclass(frozen=True)
class StoredResponse:
    """What was answered before."""

    document: dict[str, Any]
    status: int

    @property
    def answer(self) -> JSONResponse:
        """The same answer once more."""
        return JSONResponse(self.document, self.status)


class IdempotentRequest:
    """One request, and the key it came with, if any. Keys are the user's own, and each operation's."""

    def __init__(self, context: Context, caller: Caller, operation: str, key: str | None, fingerprint: str) -> None:
        """Take what identifies the request; `fingerprint` is that of all it says."""
        self._vault = context.vault
        self._owner_id = caller.id
        self._operation = operation
        self._key = key
        self._fingerprint = fingerprint

    @property
    def has_key(self) -> bool:
        """Whether it may be sent again."""
        return self._key is not None

    def find(self, session: Session) -> StoredResponse | None:
        """The answer that this request got before.

        Raises:
            RequestValidationError: its key came with another request.
        """
        if self._key is None:
            return None
        row = idempotency.find(session, self._owner_id, self._operation, self._key)
        if row is None:
            return None
        if row.fingerprint not in self._vault.digests(self._fingerprint):
            raise RequestValidationError([validation_entry(("header", HEADER), REUSED, "idempotency_key_reused")])
        return StoredResponse(row.answer, row.status)

    def keep(self, session: Session, answer: BaseModel, status: int = 200) -> None:
        """Keep the answer of a success; it must hold no secret in clear."""
        if self._key is None:
            return
        row = IdempotencyKey(
            owner_id=self._owner_id,
            operation=self._operation,
            key=self._key,
            fingerprint=self._vault.digest(self._fingerprint),
            status=status,
            answer=answer.model_dump(mode="json"),
            expires_at=now() + idempotency.KEPT_FOR,
        )
        idempotency.keep(session, row)


async def read_key(request: Request, context: ContextDep, caller: CurrentCaller, key: Key = None) -> IdempotentRequest:
    """This request, to be carried out once."""
    operation = f"{request.method} {request.url.path}"
    if not key:
        return IdempotentRequest(context, caller, operation, None, "")
    body = await request.body()
    fingerprint = await in_thread_if_large(body, _fingerprint, request, operation, body)
    return IdempotentRequest(context, caller, operation, key, fingerprint)


IdempotencyOption = Annotated[IdempotentRequest, Depends(read_key)]


def _fingerprint(request: Request, operation: str, body: bytes) -> str:
    asked = sorted(parse_qsl(request.url.query, keep_blank_values=True))
    # For how long to wait is no part of what is wished.
    query = urlencode([(name, value) for name, value in asked if name != "wait"])
    said = b"\n".join([operation.encode(), query.encode(), _canonical(body)])
    return hashlib.sha256(said).hexdigest()


def _canonical(body: bytes) -> bytes:
    """The same bytes for the same JSON, however it is spaced and ordered."""
    try:
        return json.dumps(json.loads(body), sort_keys=True, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return body
