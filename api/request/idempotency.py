"""`Idempotency-Key`: a POST repeated under the same key gets the stored response and changes nothing.

A route depends on `IdempotencyOption`. In the transaction of its request it calls `find` first and `keep` last.
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

from api.errors.handlers import validation_entry
from api.json_text import in_thread_if_large
from api.request.authentication import Caller, CurrentCaller
from api.request.context import Context, ContextDep
from shared.clock import now
from shared.db.database import Session
from shared.models import IdempotencyKey
from shared.users import idempotency

HEADER = "Idempotency-Key"
REUSED = "another request has used this key: repeat that request, or use a new key"

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
    def answer(self) -> JSONResponse:
        """The stored response, to send."""
        return JSONResponse(self.document, self.status)


class IdempotentRequest:
    """A request and its idempotency key, if it has one. Keys are scoped to one user and one operation."""

    def __init__(self, context: Context, caller: Caller, operation: str, key: str | None, fingerprint: str) -> None:
        """Take what identifies the request.

        Args:
            context: has the vault.
            caller: owns the key.
            operation: method and path.
            key: the header's value; None: the request has none.
            fingerprint: of the operation, the query and the body.
        """
        self._vault = context.vault
        self._owner_id = caller.id
        self._operation = operation
        self._key = key
        self._fingerprint = fingerprint

    @property
    def has_key(self) -> bool:
        """Whether the request has a key, so that it may be repeated."""
        return self._key is not None

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

    def keep(self, session: Session, answer: BaseModel, status: int = 200) -> None:
        """Store the response of a success. It must contain no secret in clear."""
        if self._key is None:
            return
        row = IdempotencyKey(
            owner_id=self._owner_id,
            operation=self._operation,
            key=self._key,
            fingerprint=self._vault.digest(self._fingerprint),
            status=status,
            answer=answer.model_dump(mode="json"),
            expires_at=now() + idempotency.RETENTION,
        )
        idempotency.keep(session, row)


async def read_key(request: Request, context: ContextDep, caller: CurrentCaller, key: Key = None) -> IdempotentRequest:
    """Return the request with its idempotency key."""
    operation = f"{request.method} {request.url.path}"
    if not key:
        return IdempotentRequest(context, caller, operation, None, "")
    body = await request.body()
    fingerprint = await in_thread_if_large(body, _fingerprint, request, operation, body)
    return IdempotentRequest(context, caller, operation, key, fingerprint)


IdempotencyOption = Annotated[IdempotentRequest, Depends(read_key)]


def _fingerprint(request: Request, operation: str, body: bytes) -> str:
    params = sorted(parse_qsl(request.url.query, keep_blank_values=True))
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
