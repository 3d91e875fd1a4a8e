"""Promises of the interface: requests, and the responses that keep them."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.waiting import eventually

JSON = "application/json"
# Placeholders for expected values: any text, and any list.
TEXT = "(text)"
LIST = "(list)"


@dataclass(frozen=True)
class Call:
    """A request and its expected response.

    Args:
        method: the method of the request.
        path: the path of the request, with the names of kept ids in braces.
        body: a value that is sent as JSON, or bytes that are sent unchanged.
        status: the expected status of the response.
        shows: expected values in the response by their dotted paths. TEXT and LIST stand for any value of their type.
        key: how the request is authenticated: by X-Session-API-Key, by Authorization, by an unknown key, or not.
        keeps: the name under which the `id` of the response is kept for later paths.
        media_type: the Content-Type of the request.
        headers: the expected headers of the response.
        repeats: repeat the request until the response is as expected.
    """

    method: str
    path: str
    body: Any = None
    status: int = 200
    shows: Mapping[str, Any] = field(default_factory=dict)
    key: str = "X-Session-API-Key"
    keeps: str = ""
    media_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    repeats: bool = False

    def describe_request(self) -> str:
        """Return the request as the report shows it."""
        parts = [f"`{self.method} {self.path}`"]
        if self.body is not None:
            parts.append(f"`{_text(self.body)}`")
        if self.media_type != JSON:
            parts.append(f"as `{self.media_type}`")
        if self.key != "X-Session-API-Key":
            parts.append(f"with {self.key}")
        return " ".join(parts)

    def describe_response(self) -> str:
        """Return the expected response as the report shows it."""
        shown = [
            f"`{name}` {value if value in (TEXT, LIST) else f'`{json.dumps(value)}`'}" for name, value in self._all()
        ]
        return " ".join([str(self.status), ", ".join(shown)]).strip()

    def _all(self) -> list[tuple[str, Any]]:
        return [*self.shows.items(), *self.headers.items()]


@dataclass(frozen=True)
class Promise:
    """A part of the interface, the calls that show it, and the test that covers it for every change."""

    section: str
    asks: str
    calls: tuple[Call, ...]
    test: str


class Caller:
    """A client of the running service that keeps ids between calls."""

    def __init__(self, client: httpx.Client, key: str) -> None:
        self._client = client
        self._authentication = {
            "X-Session-API-Key": {"X-Session-API-Key": key},
            "Authorization": {"Authorization": f"Bearer {key}"},
            "an unknown key": {"X-Session-API-Key": "unknown"},
            "no key": {},
        }
        self._ids: dict[str, str] = {}

    def find_deviations(self, promise: Promise) -> list[str]:
        """Make the calls of a promise and return what differs from the expected responses."""
        return [difference for call in promise.calls for difference in self._compare(call)]

    def _compare(self, call: Call) -> list[str]:
        if call.repeats:
            eventually(lambda: not compare(call, self._send(call)), deadline_seconds=240)
        response = self._send(call)
        if call.keeps and response.is_success:
            self._ids[call.keeps] = response.json()["id"]
        return [f"{call.describe_request()}: {difference}" for difference in compare(call, response)]

    def _send(self, call: Call) -> httpx.Response:
        sends = call.method in ("POST", "PUT", "PATCH")
        headers = self._authentication[call.key] | ({"Content-Type": call.media_type} if sends else {})
        content = call.body if isinstance(call.body, bytes) or call.body is None else json.dumps(call.body).encode()
        return self._client.request(call.method, call.path.format(**self._ids), content=content, headers=headers)


def compare(call: Call, response: httpx.Response) -> list[str]:
    """Return what differs between a response and the expected one."""
    found = [
        ("status", call.status, response.status_code),
        ("Content-Type", JSON, response.headers.get("Content-Type")),
    ]
    found += [(name, value, response.headers.get(name)) for name, value in call.headers.items()]
    found += [(name, value, read(response.json(), name)) for name, value in call.shows.items()]
    wrong = [] if response.is_success else _wrong_error(response)
    return wrong + [f"{name} is {actual!r}" for name, expected, actual in found if not _fits(expected, actual)]


def _text(body: Any) -> str:
    return body.decode(errors="backslashreplace") if isinstance(body, bytes) else json.dumps(body)


def read(document: Any, path: str) -> Any:
    """Return the value at a dotted path, in which numbers are indexes of lists, or "(missing)"."""
    for name in path.split("."):
        try:
            document = document[int(name)] if isinstance(document, list) else document[name]
        except (KeyError, IndexError, TypeError):
            return "(missing)"
    return document


def _fits(expected: Any, actual: Any) -> bool:
    if expected in (TEXT, LIST):
        return isinstance(actual, str if expected == TEXT else list) and actual != "(missing)"
    return bool(expected == actual)


def _wrong_error(response: httpx.Response) -> list[str]:
    """Return what is wrong with an error's body: `detail` must be a text, or for a 422 the list of section 2.4."""
    detail = read(response.json(), "detail")
    if response.status_code != 422:
        return [] if isinstance(detail, str) and detail != "(missing)" else [f"detail is {detail!r}"]
    entries = detail if isinstance(detail, list) else [detail]
    return [f"entry {entry!r}" for entry in entries if not _is_entry(entry)]


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or set(entry) != {"loc", "msg", "type"}:
        return False
    return all(isinstance(text, str) for text in (*entry["loc"], entry["msg"], entry["type"]))
