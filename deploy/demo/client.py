"""An HTTP client of the service with the demo's calls."""

from types import TracebackType
from typing import Any, Self

import httpx

from deploy.demo.errors import DemoError
from deploy.demo.script import Json

V1 = "/api/v1"


class DemoService:
    """A client of the service at `url` with a user's key. Every failure is a DemoError."""

    def __init__(self, url: str, key: str, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        headers = {"X-Session-API-Key": key}
        # The service on this machine is reached without a proxy.
        self._http = httpx.Client(base_url=self.url, headers=headers, timeout=30, transport=transport, trust_env=False)

    def __enter__(self) -> Self:
        """Return the client; nothing is sent yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connections."""
        self._http.close()

    def check_alive(self) -> None:
        """Raise unless the service responds."""
        self._call("GET", "/alive")

    def settings(self) -> Json:
        """The user's settings; empty if none are stored."""
        found: Json | None = self._call("GET", "/api/settings", absent_is_none=True)
        return found or {}

    def store_settings(self, settings: Json) -> None:
        """Store settings of the user."""
        self._call("POST", "/api/settings", json=settings)

    def start_conversation(self, message: str) -> Json:
        """Start a conversation with a message, and return the start task."""
        content = [{"type": "text", "text": message}]
        body = {"initial_message": {"role": "user", "content": content, "run": True}}
        task: Json = self._call("POST", f"{V1}/app-conversations", json=body)
        return task

    def start_task(self, task_id: str) -> Json:
        """The start task in its current state."""
        return self._get_one(f"{V1}/app-conversations/start-tasks", "ids", task_id)

    def conversation(self, conversation_id: str) -> Json:
        """The conversation in its current state."""
        return self._get_one(f"{V1}/app-conversations", "ids", conversation_id)

    def sandbox(self, sandbox_id: str) -> Json | None:
        """The sandbox in its current state; None if it is deleted."""
        found: list[Json | None] = self._call("GET", f"{V1}/sandboxes", params={"id": sandbox_id})
        return found[0] if found else None

    def delete_sandbox(self, sandbox_id: str) -> None:
        """Request the deletion of the sandbox. The id is in path and query: servers read it from either."""
        self._call("DELETE", f"{V1}/sandboxes/{sandbox_id}", params={"sandbox_id": sandbox_id})

    def events(self, conversation_id: str) -> list[Json]:
        """All events of the conversation that the service has stored, oldest first."""
        path = f"{V1}/conversation/{conversation_id}/events/search"
        items: list[Json] = []
        params = {"sort_order": "TIMESTAMP", "limit": "100"}
        while True:
            page: Json = self._call("GET", path, params=params)
            items += page["items"]
            if not page.get("next_page_id"):
                return items
            params["page_id"] = page["next_page_id"]

    def _get_one(self, path: str, name: str, value: str) -> Json:
        found: list[Json | None] = self._call("GET", path, params={name: value})
        if not found or found[0] is None:
            raise DemoError(f"the service has no {value} at {path}")
        return found[0]

    def _call(self, method: str, path: str, *, absent_is_none: bool = False, **options: Any) -> Any:
        try:
            response = self._http.request(method, path, **options)
        except httpx.ConnectError:
            raise DemoError(f"no server at {self.url}; start it with `make run`") from None
        except httpx.HTTPError as error:
            raise DemoError(f"{method} {path}: {error or type(error).__name__}") from error
        if absent_is_none and response.status_code == httpx.codes.NOT_FOUND:
            return None
        if response.is_error:
            raise DemoError(f"{method} {path} answered {response.status_code}: {response.text[:500]}")
        return response.json()
