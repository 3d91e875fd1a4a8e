"""Device logins (RFC 8628): a program receives an API key after a user has approved it on a page.

Callers of these operations have no key yet, and get nothing but codes. Only the page's form requires a user's key or
login.
"""

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.concurrency import run_in_threadpool

from api.errors.handlers import RETRY, error_response, explain_store_error
from api.errors.openapi import error_responses, pages
from api.request.authentication import find_signed_in
from api.request.context import Context, ContextDep
from api.request.form import Form
from api.request.session_cookie import check_origin, own_origin
from api.schemas.v1.device_login import DeviceCodes, DeviceRefusal, DeviceToken, slow_down
from api.web.device_pages import show_code_form, show_form, show_outcome
from shared.db.database import UNAVAILABLE
from shared.errors import Conflict, Forbidden, NotFound, Unauthenticated
from shared.models import DeviceAuthorization
from shared.users import device_authorizations
from shared.users.api_keys import AuthenticatedKey
from shared.users.device_authorizations import LIFE_SECONDS, Polled, PollError, Requester

router = APIRouter(prefix="/oauth/device", tags=["device login"])

PAGE, TOKEN = "/oauth/device/verify", "/oauth/device/token"
UNKNOWN_CODE = "No device waits under that code: it is mistyped or has expired."
DESCRIPTIONS = {
    PollError.AUTHORIZATION_PENDING: "not approved yet",
    PollError.SLOW_DOWN: "polled too soon: wait for the interval between polls",
    PollError.ACCESS_DENIED: "the user denied it",
    PollError.EXPIRED_TOKEN: "it was not approved in time: start again",
    PollError.INVALID_GRANT: "no such device_code, or it was used already",
}

Client = Annotated[str, Header(alias="X-OpenHands-Client", max_length=100, pattern=r"^[\w .-]*$")]
UserCode = Annotated[str, Query(max_length=20, pattern=r"^[A-Za-z -]*$")]


@router.post("/authorize", responses=error_responses(408, 413, 429, 503))
def authorize(context: ContextDep, request: Request, form: Form, client: Client = "") -> DeviceCodes:
    """Codes for a device: one to show to its user, and one to poll for its key with.

    The page shows the requesting program: `X-OpenHands-Client` or the form's `client_id`, `User-Agent` and address.
    """
    requester = Requester(
        client or form.get("client_id", ""),
        request.headers.get("User-Agent", ""),
        request.client.host if request.client else "",
    )
    with context.database.transaction() as session:
        begun = device_authorizations.begin(session, context.vault, requester)
    page = f"{own_origin(request)}{PAGE}"
    return DeviceCodes(
        device_code=begun.device_code,
        user_code=begun.user_code,
        verification_uri=page,
        verification_uri_complete=f"{page}?user_code={quote(begun.user_code)}",
        expires_in=LIFE_SECONDS,
        interval=device_authorizations.INTERVAL_SECONDS,
    )


@router.post(
    "/token",
    response_model=DeviceToken,
    responses=error_responses(408, 413, 429, 503) | {400: {"model": DeviceRefusal}},
)
def get_token(context: ContextDep, form: Form) -> Any:
    """The device's key, after its user has approved; until then, 400 with an error of RFC 8628.

    The form has a `device_code`. It may have a `grant_type`, which must be that of this flow. A 429 and a 503 have the
    error `slow_down`, so the device polls again.
    """
    if form.get("grant_type") not in (None, "", "urn:ietf:params:oauth:grant-type:device_code"):
        return _refuse("unsupported_grant_type", "only device codes are supported")
    if not form.get("device_code"):
        return _refuse("invalid_request", "a device_code is needed")
    try:
        with context.database.transaction() as session:
            polled = device_authorizations.poll(session, context.vault, form["device_code"])
    except UNAVAILABLE as error:
        why = explain_store_error(TOKEN, error)
        return error_response(503, why, RETRY, fields=slow_down(why))
    if polled.key is None:
        return _refuse_poll(polled)
    return JSONResponse(DeviceToken(access_token=polled.key).model_dump())


@router.get("/verify", response_class=HTMLResponse, responses=pages(404) | error_responses(429, 503))
async def get_page(request: Request, context: ContextDep, user_code: UserCode = "") -> HTMLResponse:
    """The page on which a user approves or denies. Without a code, the page asks for one."""
    if not user_code:
        return show_code_form()
    requester = await run_in_threadpool(_find, context, user_code)
    if requester is None:
        return show_code_form(user_code, UNKNOWN_CODE, 404)
    return show_form(user_code, requester, name=_name(await find_signed_in(request)))


@router.post(
    "/verify",
    response_class=HTMLResponse,
    responses=pages(400, 401, 403, 404, 409) | error_responses(408, 413, 429, 503),
)
async def decide(request: Request, context: ContextDep, form: Form) -> HTMLResponse:
    """Approve or deny a device: a form with `user_code`, and `decision`, which is `approve` or `deny`.

    Users who are not signed in send their `api_key` too.
    """
    code, decision, signed_in = form.get("user_code", ""), form.get("decision"), None
    requester = await run_in_threadpool(_find, context, code)
    if requester is None:
        return show_code_form(code, UNKNOWN_CODE, 404)
    try:
        if not (key := form.get("api_key", "").strip()):
            signed_in = await find_signed_in(request)
        if signed_in:
            check_origin(request)
        if decision not in ("approve", "deny"):
            return show_form(code, requester, "Choose whether to approve or to deny.", 400, _name(signed_in))
        holder = signed_in or await context.callers.find(key)
        await run_in_threadpool(_decide, context, code, holder.key_id, approve=decision == "approve")
    except (Conflict, Forbidden, Unauthenticated) as error:
        status, complaint = _explain(error)
        return show_form(code, requester, complaint, status, _name(signed_in))
    except NotFound:
        return show_code_form(code, UNKNOWN_CODE, 404)
    return show_outcome(approved=decision == "approve")


def _find(context: Context, code: str) -> DeviceAuthorization | None:
    with context.database.reading() as session:
        return device_authorizations.find(session, context.vault, code)


def _name(holder: AuthenticatedKey | None) -> str | None:
    return holder and holder.name


def _explain(error: Conflict | Forbidden | Unauthenticated) -> tuple[int, str]:
    """The status of a refused decision, and the complaint."""
    match error:
        case Forbidden():
            return 403, "This must be sent from this page."
        case Unauthenticated():
            return 401, "That is no valid API key."
    return 409, f"It would get no key, because {error}."


def _decide(context: Context, code: str, key_id: str, *, approve: bool) -> None:
    with context.database.transaction() as session:
        device_authorizations.decide(session, context.vault, code, key_id, approve=approve)


def _refuse_poll(polled: Polled) -> JSONResponse:
    error = polled.error or PollError.INVALID_GRANT
    return _refuse(error, DESCRIPTIONS[error], polled.interval)


def _refuse(error: str, description: str, interval: int = device_authorizations.INTERVAL_SECONDS) -> JSONResponse:
    refusal = DeviceRefusal(error=error, error_description=description, interval=interval)
    return JSONResponse(refusal.model_dump(), 400)
