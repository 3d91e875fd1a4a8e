"""A web client's request to a sandbox, in an envelope (wire contract 4.4)."""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field

from shared.json_documents import check_document

Headers = list[tuple[bytes, bytes]]

NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
VALUE = re.compile(r"[\x20-\x7e\x80-\xff]*")
MAX_HEADERS = 50
# Headers that say where a body ends: this service sets them itself.
FRAMING_HEADERS = ("content-length", "transfer-encoding")


def _check_headers(headers: dict[str, str]) -> dict[str, str]:
    if not all(NAME.fullmatch(name) and VALUE.fullmatch(value) for name, value in headers.items()):
        raise ValueError("a header's name must be a token, and its value must not have control characters")
    return headers


class CloudProxyRequest(BaseModel):
    """A request to a sandbox's agent server."""

    # The part of a conversation's URL before `/api/conversations`.
    host: str = Field(max_length=2000)
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    path: str = Field(max_length=8000, pattern=r"^/[!-~]*$")
    headers: Annotated[dict[str, str], Field(max_length=MAX_HEADERS), AfterValidator(_check_headers)] = Field(
        default_factory=dict
    )
    # A text is sent unchanged; any other value as JSON.
    body: Annotated[Any, BeforeValidator(check_document)] = None

    def find_header(self, name: str) -> str | None:
        """Return the value of a header; `name` is in lower case."""
        return next((value for key, value in self.headers.items() if key.lower() == name), None)

    def content(self) -> bytes:
        """Encode the body; empty if there is none."""
        if self.body is None:
            return b""
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode(errors="replace")

    def passed_headers(self) -> Headers:
        """Return the headers to send. A body without a content type is JSON: the web UI names none."""
        passed = [(name.lower(), value) for name, value in self.headers.items() if name.lower() not in FRAMING_HEADERS]
        content = self.content()
        if content:
            passed.append(("content-length", str(len(content))))
            if self.find_header("content-type") is None:
                passed.append(("content-type", "application/json"))
        return [(name.encode(), value.encode("latin-1")) for name, value in passed]
