"""Every operation of the application, for tests that sweep over all of them."""

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
# What is sent to these is not read, or is a form, which the description leaves out.
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
    # Query parameters without which it is a 422.
    required: tuple[str, ...]
    has_body: bool
    needs_body: bool

    @property
    def is_webhook(self) -> bool:
        """Whether it is for sandboxes, with their own keys."""
        return "/webhooks/" in self.path or "/settings/secrets" in self.path

    @property
    def takes_new_names(self) -> bool:
        """Whether whatever can be a name in its path is all right."""
        return self.path.endswith("/profiles/{name}") and self.method in ("POST", "DELETE")

    @property
    def is_open(self) -> bool:
        return self.path in OPEN

    def url(self, **values: str) -> str:
        """The path with its placeholders filled: all alike unless named."""
        return PLACEHOLDER.sub(lambda found: values.get(found[1], values.get("any", "0" * 32)), self.path)

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def all_operations(client: TestClient) -> list[Operation]:
    """Every operation that the application's own description names.

    Raises:
        AssertionError: docs/reference/api.md lists others. A sweep over a part of them would show nothing of the rest.
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
    """Every operation that reads a JSON body.

    Raises:
        AssertionError: an operation that writes is neither one of them nor listed as bodiless.
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
