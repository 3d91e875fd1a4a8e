"""A page's request to a sandbox, in an envelope (wire contract 4.4)."""

import json
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

Headers = list[tuple[bytes, bytes]]

NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
VALUE = re.compile(r"[\x20-\x7e\x80-\xff]*")
MAX_HEADERS = 50
# What says where a body ends.
OURS = ("content-length", "transfer-encoding")


def _check_headers(headers: dict[str, str]) -> dict[str, str]:
    if not all(NAME.fullmatch(name) and VALUE.fullmatch(value) for name, value in headers.items()):
        raise ValueError("a header's name is a token, and its value has no control characters")
    return headers


class CloudProxyRequest(BaseModel):
    """What to ask of a sandbox's agent server."""

    # What comes before `/api/conversations` in the address of a conversation.
    host: str = Field(max_length=2000)
    method: Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"] = "GET"
    path: str = Field(max_length=8000, pattern=r"^/[!-~]*$")
    headers: Annotated[dict[str, str], Field(max_length=MAX_HEADERS), AfterValidator(_check_headers)] = Field(
        default_factory=dict
    )
    # A text is sent as it is; anything else as JSON.
    body: Any = None

    def find_header(self, name: str) -> str | None:
        """The value of the header of that name, in lower case."""
        return next((value for key, value in self.headers.items() if key.lower() == name), None)

    def content(self) -> bytes:
        """The body as it is sent; empty if there is none."""
        if self.body is None:
            return b""
        return (self.body if isinstance(self.body, str) else json.dumps(self.body)).encode(errors="replace")

    def passed_headers(self) -> Headers:
        """The headers as they are sent; the page names no type for its bodies, which are JSON."""
        kept = [(name.lower(), value) for name, value in self.headers.items() if name.lower() not in OURS]
        content = self.content()
        if content:
            kept.append(("content-length", str(len(content))))
            if self.find_header("content-type") is None:
                kept.append(("content-type", "application/json"))
        return [(name.encode(), value.encode("latin-1")) for name, value in kept]
