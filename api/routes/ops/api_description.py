"""The OpenAPI description of the API.

FastAPI's own route would render 490 KB of JSON for each request on the event loop, and no request needs a key.
"""

import asyncio
from concurrent.futures import Future, ThreadPoolExecutor
from hashlib import blake2b

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response

from api.lists import CachedResponse, respond
from shared import __version__
from shared.json_documents import write_document

PATH = "/openapi.json"

router = APIRouter(include_in_schema=False)
# One thread: it takes half a second of CPU time, and never runs twice at a time.
_THREAD = ThreadPoolExecutor(1, "api-description")


@router.get(PATH)
async def get_description(request: Request) -> Response:
    """All operations in OpenAPI's format, rendered at the first request; 304 if the client has it."""
    state = request.app.state
    if not hasattr(state, "description"):
        state.description = _THREAD.submit(_render, request.app)
    rendering: Future[CachedResponse] = state.description
    # A client that leaves must not cancel it for others.
    return respond(request, await asyncio.shield(asyncio.wrap_future(rendering)))


def _render(app: FastAPI) -> CachedResponse:
    body = write_document(app.openapi(), ascii_only=False).encode()
    etag = f'"{blake2b(body, digest_size=16).hexdigest()}"'
    return CachedResponse(__version__, etag, Response(body, headers={"ETag": etag}, media_type="application/json"))
