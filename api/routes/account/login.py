"""Sign in with a browser: a user enters an API key and gets a cookie with the same access."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool

from api.errors.openapi import Responses, error_responses, pages
from api.request.authentication import find_signed_in
from api.request.context import Context, ContextDep
from api.request.form import Form
from api.request.session_cookie import check_origin, clear_cookie, local_path, read_token, set_cookie
from api.web.pages import show_login, show_signed_in
from shared.errors import Forbidden, Unauthenticated
from shared.users import web_sessions
from shared.users.web_sessions import NewSession

router = APIRouter(tags=["web UI"], default_response_class=HTMLResponse)

SIGNED_IN_ALREADY: Responses = {303: {"description": "signed in already: redirects to `returnTo`"}}

ReturnTo = Annotated[str | None, Query(alias="returnTo", max_length=10_000)]


@router.get("/login", responses=SIGNED_IN_ALREADY | error_responses(429, 503))
async def get_page(request: Request, context: ContextDep, return_to: ReturnTo = None) -> Response:
    """The page that asks for a key. Users who are signed in are redirected, or, without `returnTo`, may sign out."""
    holder = await find_signed_in(request)
    if holder is None:
        return show_login(local_path(return_to))
    if return_to is not None:
        return RedirectResponse(local_path(return_to), 303)
    return show_signed_in(holder.name, with_canvas=(context.settings.canvas / "index.html").exists())


@router.post(
    "/login",
    response_class=RedirectResponse,
    status_code=303,
    responses=pages(401, 403) | error_responses(408, 413, 429, 503),
)
async def sign_in(request: Request, context: ContextDep, form: Form) -> Response:
    """Sign in with a form of `api_key` and `returnTo`: set a cookie, and redirect to that path of this service."""
    return_to = local_path(form.get("returnTo"))
    try:
        check_origin(request)
        holder = await context.callers.find(form.get("api_key", "").strip())
    except Forbidden:
        return show_login(return_to, "This must be sent from this page.", 403)
    except Unauthenticated:
        return show_login(return_to, "That is no valid API key.", 401)
    begun = await run_in_threadpool(_begin, context, holder.key_id, read_token(request))
    response = RedirectResponse(return_to, 303)
    set_cookie(request, response, begun.token, begun.seconds)
    return response


@router.post(
    "/logout", response_class=RedirectResponse, status_code=303, responses=error_responses(403, 408, 413, 429, 503)
)
async def sign_out(request: Request, context: ContextDep) -> Response:
    """End the login of this browser."""
    check_origin(request)
    token = read_token(request)
    if token is not None:
        await run_in_threadpool(_end, context, token)
    response = RedirectResponse("/login", 303)
    clear_cookie(response)
    return response


def _begin(context: Context, key_id: str, replaced: str | None) -> NewSession:
    with context.database.transaction() as session:
        if replaced is not None:
            web_sessions.end(session, context.vault, replaced)
        return web_sessions.begin(session, context.vault, key_id)


def _end(context: Context, token: str) -> None:
    with context.database.transaction() as session:
        web_sessions.end(session, context.vault, token)
