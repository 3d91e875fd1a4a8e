"""Errors as HTTP responses: the table of statuses, and bodies that never repeat the request's values."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.routing import Match

from api.errors.limits import TooManyRequests
from api.errors.upstream import (
    GatewayTimeout,
    TemporarilyUnavailable,
    UpstreamRateLimited,
    UpstreamRejected,
    UpstreamTimeout,
    UpstreamUnreachable,
    WakeTimeout,
)
from shared.agent_server.errors import AgentServerError
from shared.db.database import UNAVAILABLE, is_disk_full, is_read_only
from shared.errors import (
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    QuotaExceeded,
    TooLarge,
    Unauthenticated,
    Unavailable,
    WorkspaceError,
)
from shared.observability import metrics
from shared.observability.correlation import request_id
from shared.sql.write_slots import is_lock_timeout

log = structlog.get_logger()

# For `TemporarilyUnavailable`, and for an agent server's 429: the cause passes soon.
RETRY_SECONDS = 1

RETRY = {"Retry-After": str(RETRY_SECONDS)}
SILENT = "the store does not respond; retry"
LOCKED = "another request holds a lock on a row that this request changes; retry"
DISK_FULL = "the store's disk is full: nothing can be stored until its operator frees space"
READ_ONLY = "the store is read-only, as during a failover: nothing can be stored until it takes writes again; retry"

STATUS: dict[type[WorkspaceError], int] = {
    Unauthenticated: 401,
    Forbidden: 403,
    NotFound: 404,
    Invalid: 400,
    Conflict: 409,
    Gone: 410,
    TooLarge: 413,
    QuotaExceeded: 429,
    TooManyRequests: 429,
    AgentServerError: 502,
    UpstreamUnreachable: 502,
    TemporarilyUnavailable: 503,
    Unavailable: 503,
    GatewayTimeout: 504,
    WakeTimeout: 504,
    UpstreamTimeout: 504,
}

# The methods of this service's routes.
METHODS = ("DELETE", "GET", "PATCH", "POST", "PUT")
# Max entries of a 422's `detail`: thousands would be a response of megabytes, which stalls other requests.
MAX_ENTRIES = 100
# Why a body can't be parsed. A UnicodeDecodeError is a ValueError.
UNREADABLE: dict[type[Exception], str] = {
    UnicodeDecodeError: "the body is not UTF-8",
    RecursionError: "the body is nested too deep",
    ValueError: "a number in the body has too many digits",
}


def install_error_handlers(app: FastAPI) -> None:
    app.add_exception_handler(HTTPException, _handle_http_exception)
    app.add_exception_handler(WorkspaceError, handle_workspace_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    for kind in UNAVAILABLE:
        app.add_exception_handler(kind, _handle_store_error)
    # FastAPI raises these.
    app.add_exception_handler(400, _handle_unreadable_body)
    app.add_exception_handler(405, _handle_wrong_method)
    app.add_exception_handler(Exception, _handle_internal_error)


def error_response(
    status: int,
    detail: Any,
    headers: Mapping[str, str] | None = None,
    names: tuple[str, ...] = ("detail",),
    fields: Mapping[str, Any] = MappingProxyType({}),
) -> JSONResponse:
    """Return the response for an error: a text, or for a 422 a list, under each of `names` (wire contract, section 0).

    With its `request_id`, an operator finds the request in the logs. V1 has no such field, and its clients ignore it.

    Args:
        fields: more fields of the body.
    """
    document = dict.fromkeys(names, detail) | {"request_id": request_id.get(), **fields}
    return JSONResponse(document, status, headers)


def explain_store_error(path: str, error: Exception) -> str:
    """Log an error of the store (`UNAVAILABLE`), and return the `detail` of its 503."""
    if is_lock_timeout(error):
        log.warning("row_locked", path=path)
        return LOCKED
    if is_disk_full(error):
        log.error("store_disk_full", path=path)
        return DISK_FULL
    if is_read_only(error):
        log.error("store_read_only", path=path)
        return READ_ONLY
    log.error("store_unavailable", path=path, error=type(error).__name__)
    return SILENT


def validation_entry(location: tuple[str, ...], message: str, kind: str = "value_error") -> dict[str, Any]:
    """Return an entry of a 422's `detail` (wire contract, section 0)."""
    return {"loc": list(location), "msg": message, "type": kind}


async def handle_workspace_error(
    request: Request, error: Exception, names: tuple[str, ...] = ("detail",)
) -> JSONResponse:
    """Return the response for a WorkspaceError; the body has its text under each of `names`."""
    status = _status_of(error)
    if status is None:
        return await _handle_internal_error(request, error)
    return error_response(status, str(error), _headers(error), names)


def _status_of(error: Exception) -> int | None:
    if isinstance(error, UpstreamRejected):
        return error.status
    return next((code for kind, code in STATUS.items() if isinstance(error, kind)), None)


def _headers(error: Exception) -> dict[str, str] | None:
    if isinstance(error, TooManyRequests):
        return error.headers
    if isinstance(error, QuotaExceeded | UpstreamRateLimited):
        return {"Retry-After": str(error.retry_seconds)}
    if isinstance(error, TemporarilyUnavailable) or (isinstance(error, UpstreamRejected) and error.status == 429):
        return RETRY
    return {"WWW-Authenticate": "Bearer"} if isinstance(error, Unauthenticated) else None


async def _handle_http_exception(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - it is installed for this type alone
    return error_response(error.status_code, error.detail, error.headers)


async def _handle_validation_error(request: Request, error: Exception) -> JSONResponse:
    # Pydantic's `input` and `ctx` are omitted: they repeat values of the request, including secrets.
    entries = error.errors()[:MAX_ENTRIES] if isinstance(error, RequestValidationError) else []
    detail = [validation_entry(tuple(map(str, entry["loc"])), entry["msg"], entry["type"]) for entry in entries]
    if _is_unparsed(request, detail):
        detail = [validation_entry(("header", "Content-Type"), "must be application/json", "content_type")]
    return error_response(422, detail)


async def _handle_unreadable_body(_request: Request, error: Exception) -> JSONResponse:
    # Malformed JSON is a 422 already; these are the errors of Python's parser itself.
    cause = error.__cause__
    why = next((text for kind, text in UNREADABLE.items() if isinstance(cause, kind)), "the body can't be parsed")
    return error_response(422, [validation_entry(("body",), why, "json_invalid")])


async def _handle_wrong_method(request: Request, _error: Exception) -> JSONResponse:
    # Each route knows only its own method.
    allowed = [method for method in METHODS if _has_route(request, method)]
    heads = ["HEAD"] if "GET" in allowed else []
    return error_response(405, "Method Not Allowed", {"Allow": ", ".join(sorted(allowed + heads))})


def _has_route(request: Request, method: str) -> bool:
    scope = {**request.scope, "method": method}
    return any(route.matches(scope)[0] == Match.FULL for route in request.app.routes)


def _is_unparsed(request: Request, entries: list[dict[str, Any]]) -> bool:
    """Whether FastAPI has not parsed the body because of its content type: it reports a wrong type then."""
    found = [(entry["loc"], entry["type"].endswith("_type")) for entry in entries]
    return found == [(["body"], True)] and not _is_json(request)


def _is_json(request: Request) -> bool:
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


async def _handle_store_error(request: Request, error: Exception) -> JSONResponse:
    return error_response(503, explain_store_error(request.scope["path"], error), RETRY)


async def _handle_internal_error(request: Request, error: Exception) -> JSONResponse:
    # Only the type is logged: an exception's text may contain a secret.
    log.error("internal_error", path=request.scope["path"], error=type(error).__name__, where=_where(error))
    metrics.count_failed_request()
    return error_response(500, "internal error")


def _where(error: Exception) -> str:
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else "?"
