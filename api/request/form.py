"""Form bodies, as browsers and OAuth clients send them."""

import json
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError

from api.errors.handlers import validation_entry
from api.middleware.request_body import NUL_MESSAGE
from shared.json_documents import check_texts

# More than any form of this service has. `api.middleware.request_body` limits the bytes.
MAX_FIELDS = 20

Fields = dict[str, str]


async def read_form(request: Request) -> Fields:
    """Return the fields of a form or the string fields of a JSON object; none if the body is neither.

    Raises:
        RequestValidationError: a field contains a NUL, or half of a surrogate pair.
    """
    fields = _parse(await request.body(), request.headers.get("Content-Type", ""))
    if any("\0" in text for text in fields.values()):
        raise RequestValidationError([validation_entry(("body",), NUL_MESSAGE, "nul")])
    try:
        check_texts(fields)
    except ValueError as error:
        raise RequestValidationError([validation_entry(("body",), str(error))]) from None
    return fields


def _parse(body: bytes, content_type: str) -> Fields:
    try:
        if content_type.startswith("application/json"):
            return _string_fields(json.loads(body))
        return dict(parse_qsl(body.decode(), max_num_fields=MAX_FIELDS))
    except (ValueError, RecursionError):
        return {}


def _string_fields(document: object) -> Fields:
    pairs = document.items() if isinstance(document, dict) else ()
    return {name: value for name, value in pairs if isinstance(value, str)}


Form = Annotated[Fields, Depends(read_form)]
