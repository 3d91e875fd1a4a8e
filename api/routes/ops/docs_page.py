"""The page that describes the API.

Its scripts come from this service, because on this origin they may do whatever the page's user may.
"""

from pathlib import Path

import fastapi_offline
from fastapi import APIRouter
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.staticfiles import StaticFiles
from starlette.responses import HTMLResponse

from api.paths import DOCS_ASSETS
from api.routes.ops import api_description

router = APIRouter(include_in_schema=False)
# Not the package's own application: FastAPI's cache of route functions would keep one for each test indefinitely.
parts = StaticFiles(directory=Path(fastapi_offline.__file__).parent / "static")


@router.get("/docs")
def show_description() -> HTMLResponse:
    """All operations, to read and to try. No other page may frame it, and so trick its reader into trying them."""
    page = get_swagger_ui_html(
        openapi_url=api_description.PATH,
        title="Agent Workspace",
        swagger_js_url=f"{DOCS_ASSETS}/swagger-ui-bundle.js",
        swagger_css_url=f"{DOCS_ASSETS}/swagger-ui.css",
        swagger_favicon_url=f"{DOCS_ASSETS}/favicon.png",
    )
    page.headers["Content-Security-Policy"] = "frame-ancestors 'none'"
    return page
