"""All operations of the application, for tests that sweep over them."""

import re
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.api.documented import EVERY

OPEN = (
    "/alive",
    "/health",
    "/ready",
    "/server_info",
    "/api/v1/web-client/config",
    "/oauth/device/authorize",
    "/oauth/device/token",
    "/oauth/device/verify",
    "/login",
    "/logout",
)
# Operations that read no body, or a form, which the OpenAPI description omits.
BODILESS = {
    "POST /api/authenticate",
    "POST /api/conversations/{conversation_id}/start",
    "POST /api/conversations/{conversation_id}/stop",
    "POST /api/reset-settings",
    "POST /api/unset-provider-tokens",
    "POST /api/v1/app-conversations/start-tasks/{task_id}/cancel",
    "POST /api/v1/sandboxes/{sandbox_id}/pause",
    "POST /api/v1/sandboxes/{sandbox_id}/resume",
    "POST /api/v1/settings/profiles/{name}/activate",
    "POST /login",
    "POST /logout",
    "POST /oauth/device/authorize",
    "POST /oauth/device/token",
    "POST /oauth/device/verify",
}
PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    parameters: tuple[str, ...]
    # Required query parameters.
    required: tuple[str, ...]
    has_body: bool
    needs_body: bool

    @property
    def is_webhook(self) -> bool:
        """Whether the operation requires a sandbox's session key."""
        return "/webhooks/" in self.path or "/settings/secrets" in self.path

    @property
    def takes_new_names(self) -> bool:
        """Whether the path accepts any valid name, including unknown ones."""
        return self.path.endswith("/profiles/{name}") and self.method in ("POST", "DELETE")

    @property
    def is_open(self) -> bool:
        return self.path in OPEN

    def url(self, **values: str) -> str:
        """Return the path with its placeholders filled by name, or by `any`."""
        return PLACEHOLDER.sub(lambda found: values.get(found[1], values.get("any", "0" * 32)), self.path)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def all_operations(client: TestClient) -> list[Operation]:
    """Return all operations of the OpenAPI description.

    Raises:
        AssertionError: docs/reference/api.md lists other operations, so that a sweep would not cover all.
    """
    app = client.app
    assert isinstance(app, FastAPI)
    found = [
        _operation(method, path, details)
        for path, methods in app.openapi()["paths"].items()
        for method, details in methods.items()
    ]
    assert sorted(map(str, found)) == EVERY
    return found


def operations_with_a_body(client: TestClient) -> list[Operation]:
    """Return all operations that read a JSON body.

    Raises:
        AssertionError: a writing operation neither reads a JSON body nor is in `BODILESS`.
    """
    found = [one for one in all_operations(client) if one.has_body]
    writing = {one for one in EVERY if one.startswith(("POST ", "PUT ", "PATCH "))}
    assert {str(one) for one in found} == writing - BODILESS
    return found


def _operation(method: str, path: str, details: dict[str, Any]) -> Operation:
    query = [parameter for parameter in details.get("parameters", []) if parameter["in"] == "query"]
    return Operation(
        method=method.upper(),
        path=path,
        parameters=tuple(parameter["name"] for parameter in query),
        required=tuple(parameter["name"] for parameter in query if parameter["required"]),
        has_body="requestBody" in details,
        needs_body=details.get("requestBody", {}).get("required", False),
    )
