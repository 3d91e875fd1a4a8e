"""Bodies that are forms, as browsers and OAuth clients send them."""

import json
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError

from api.errors.handlers import validation_entry
from api.middleware.request_body import NUL_MESSAGE

# More than any form of ours has; `api.middleware.request_body` limits their bytes.
MAX_FIELDS = 20

Fields = dict[str, str]


async def read_form(request: Request) -> Fields:
    """The fields of a form, or of a JSON object of texts; none where it is neither.

    Raises:
        RequestValidationError: one of them holds a NUL.
    """
    fields = _parse(await request.body(), request.headers.get("Content-Type", ""))
    if any("\0" in text for text in fields.values()):
        raise RequestValidationError([validation_entry(("body",), NUL_MESSAGE, "nul")])
    return fields


def _parse(body: bytes, content_type: str) -> Fields:
    try:
        if content_type.startswith("application/json"):
            return _texts(json.loads(body))
        return dict(parse_qsl(body.decode(), max_num_fields=MAX_FIELDS))
    except (ValueError, RecursionError):
        return {}


def _texts(document: object) -> Fields:
    pairs = document.items() if isinstance(document, dict) else ()
    return {name: value for name, value in pairs if isinstance(value, str)}


Form = Annotated[Fields, Depends(read_form)]
