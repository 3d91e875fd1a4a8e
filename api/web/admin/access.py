"""Access to the operators' pages: for users with the role admin and a browser login.

An API key is not accepted: the pages are for people. A form carries a token of its login, and its origin is checked as
well: responses of sandboxes come from the same address as the pages, in documents without an origin (decision 65).
"""

import hmac
from collections.abc import Callable, Coroutine
from html import escape
from typing import Annotated, Any, NamedTuple
from urllib.parse import quote

from fastapi import Depends, Request, Response
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool

from api.errors.handlers import STATUS
from api.paths import query_of
from api.request.authentication import find_signed_in
from api.request.context import Context, get_context
from api.request.form import Form
from api.request.session_cookie import check_origin, read_token
from api.web.pages import show_page
from shared.errors import Forbidden, WorkspaceError
from shared.sql.write_slots import caller
from shared.users import roles
from shared.users.audit import Actor

# The name of the field with a form's token.
FIELD = "form_token"
REFUSALS = {404: "Not found", 409: "Not possible now", 400: "Not possible", 403: "Not allowed"}


class Admin(NamedTuple):
    """A signed-in operator, with the token for the forms of the login."""

    id: str
    actor: Actor
    form_token: str


class AdminRoute(APIRoute):
    """A route for operators. An error is a page, too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Require an operator, then call the endpoint."""
        handle = super().get_route_handler()

        async def check_and_handle(request: Request) -> Response:
            try:
                request.state.admin = await find_admin(request)
                if request.state.admin is None:
                    return _go_to_login(request)
                return await handle(request)
            except WorkspaceError as error:
                return _show_error(error)

        return check_and_handle


async def find_admin(request: Request) -> Admin | None:
    """The operator who is signed in; None: no user is.

    Raises:
        Forbidden: the user is no operator, or a page of another origin sent a request that changes something.
    """
    context, holder = get_context(request), await find_signed_in(request)
    if holder is None:
        return None
    check_origin(request)
    if not await run_in_threadpool(_is_admin, context, holder.id):
        raise Forbidden(f"this page is for admins, and {holder.name} is not one")
    if holder.use_is_stale:
        await context.key_uses.note(holder.key_id)
    caller.set(holder.id)
    token = context.vault.derive(_purpose(request))
    return Admin(holder.id, Actor(holder.name, holder.key_prefix), token)


async def get_admin(request: Request) -> Admin:
    """The operator that `AdminRoute` has found."""
    admin: Admin = request.state.admin
    return admin


async def require_form_token(request: Request, form: Form) -> None:
    """Check that a form comes from a page that was made for the same login.

    Raises:
        Forbidden: it does not.
    """
    given = form.get(FIELD, "").encode()
    tokens = get_context(request).vault.derive_all(_purpose(request))
    if not any(hmac.compare_digest(given, token.encode()) for token in tokens):
        raise Forbidden("this form is out of date: go back, load the page again, and repeat it")


CurrentAdmin = Annotated[Admin, Depends(get_admin)]


def _is_admin(context: Context, user_id: str) -> bool:
    with context.database.reading() as session:
        return roles.is_admin(session, user_id)


def _purpose(request: Request) -> str:
    return f"forms of the login {read_token(request)}"


def _go_to_login(request: Request) -> Response:
    """Redirect to the login, and from there back to the page; from a form to the first page."""
    path = "/admin"
    if request.method == "GET":
        path = quote(request.scope["path"]) + (f"?{query}" if (query := query_of(request)) else "")
    return RedirectResponse(f"/login?returnTo={quote(path, safe='/')}", 303)


def _show_error(error: WorkspaceError) -> Response:
    status = next((code for kind, code in STATUS.items() if isinstance(error, kind)), None)
    if status not in REFUSALS:
        raise error
    content = f'<p>{escape(str(error))}</p><p><a href="/admin">Overview</a> · <a href="/login">Sign in or out</a></p>'
    return show_page(REFUSALS[status], content, status)
