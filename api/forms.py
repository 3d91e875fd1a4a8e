"""Bodies that are forms, as browsers and OAuth clients send them."""

import json
from typing import Annotated
from urllib.parse import parse_qsl

from fastapi import Depends, Request

# Bytes, and fields: more than any form of ours has.
LARGEST = 16_384
MOST_FIELDS = 20

Fields = dict[str, str]


async def read_form(request: Request) -> Fields:
    """The fields of a form, or of a JSON object of texts; none where it is neither."""
    body = await request.body()
    if len(body) > LARGEST:
        return {}
    try:
        if request.headers.get("Content-Type", "").startswith("application/json"):
            return _texts(json.loads(body))
        return dict(parse_qsl(body.decode(), max_num_fields=MOST_FIELDS))
    except (ValueError, RecursionError):
        return {}


def _texts(document: object) -> Fields:
    pairs = document.items() if isinstance(document, dict) else ()
    return {name: value for name, value in pairs if isinstance(value, str)}


Form = Annotated[Fields, Depends(read_form)]
