"""Renders the operators' pages: templates, the words for times and sizes, and what a browser may do with a page.

Names, reasons and log lines come from users and sandboxes, so every value is escaped. A page runs this folder's script
only, not any script from this address: responses of sandboxes come from this address, too.
"""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles

from api.request.session_cookie import own_origin
from api.web.admin.access import FIELD, Admin
from api.web.pages import restrict
from shared.clock import now

FOLDER = Path(__file__).parent
ASSETS = Mount("/admin/assets", StaticFiles(directory=FOLDER / "assets"))
# Lines of a log that a list shows, and characters of each line.
EXCERPT_LINES, EXCERPT_LENGTH = 4, 600


def render(request: Request, template: str, admin: Admin, **values: Any) -> HTMLResponse:
    """A page for an operator."""
    page = PAGES.get_template(template).render(
        admin=admin, form_field=FIELD, path=request.scope["path"], now=now(), **values
    )
    return HTMLResponse(page, headers=_headers(own_origin(request)))


def _headers(origin: str) -> dict[str, str]:
    return restrict(
        default_src="'none'",
        script_src=f"{origin}/admin/assets/",
        style_src=f"{origin}/admin/assets/",
        connect_src=f"{origin}/admin {origin}/admin/",
        form_action=f"{origin}/admin/",
        frame_ancestors="'none'",
        base_uri="'none'",
    )


def describe_seconds(seconds: float) -> str:
    """A duration for people: exact while it is short."""
    if seconds < 60:
        return f"{max(0.0, seconds):.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 48 * 60 else f"{minutes // (24 * 60)} d"


def _age(at: datetime | None) -> str:
    return "" if at is None else describe_seconds((now() - at).total_seconds())


def _moment(at: datetime | None) -> str:
    return "" if at is None else f"{at:%Y-%m-%d %H:%M:%S}"


def _size(number: int) -> str:
    amount, units = float(number), ["B", "kB", "MB", "GB", "TB"]
    while amount >= 1000 and len(units) > 1:
        amount, units = amount / 1000, units[1:]
    return f"{amount:.0f} {units[0]}" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def _excerpt(text: str | None) -> str:
    """The first line, which says what happened, and the last ones, which are the container's."""
    lines = (text or "").strip().splitlines()
    shown = lines if len(lines) <= EXCERPT_LINES + 1 else [lines[0], "…", *lines[-EXCERPT_LINES:]]
    return "\n".join(line[:EXCERPT_LENGTH] for line in shown)


FILTERS: dict[str, Callable[..., str]] = {
    "age": _age,
    "moment": _moment,
    "size": _size,
    "excerpt": _excerpt,
    "seconds": describe_seconds,
}
PAGES = Environment(
    loader=FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
PAGES.filters.update(FILTERS)
