"""A user's HTTP client of the service, with the operations that tests use."""

from typing import Any

import httpx

from tests.factories import ApiUser
from tests.services import http
from tests.waiting import eventually

# With fewer, httpcore closes an idle connection that it has just assigned to another thread.
KEEP_ALL = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=None)


class Client(httpx.Client):
    """A user's client."""

    def __init__(self, url: str, user: ApiUser) -> None:
        super().__init__(
            base_url=url,
            headers=user.headers,
            timeout=90,
            verify=http.NO_CERTIFICATES,
            trust_env=False,
            limits=KEEP_ALL,
        )
        self.user = user

    def sandbox(self, sandbox_id: str) -> dict[str, Any] | None:
        """A sandbox as the batch get returns it."""
        found: dict[str, Any] | None = self.read("/api/v1/sandboxes", id=sandbox_id)[0]
        return found

    def start_sandbox(self, spec_id: str | None = None) -> str:
        """Start a sandbox; return its id."""
        response = self.post("/api/v1/sandboxes", params={"sandbox_spec_id": spec_id} if spec_id else None)
        assert response.status_code == 200, response.text
        return str(response.json()["id"])

    def await_sandbox(self, sandbox_id: str, status: str, *, deadline_seconds: float = 180) -> dict[str, Any]:
        """Wait until a sandbox has a status, and fail at an unexpected ERROR; return the sandbox."""

        def has_status() -> dict[str, Any] | None:
            found = self.sandbox(sandbox_id)
            assert found is not None
            assert found["status"] in (status, "STARTING", "RUNNING", "PAUSED"), found
            return found if found["status"] == status else None

        return eventually(has_status, deadline_seconds=deadline_seconds) or {}

    def start_conversation(self, **request: object) -> str:
        """Start a conversation; return the start task's id."""
        response = self.post("/api/v1/app-conversations", json=request)
        assert response.status_code == 200, response.text
        return str(response.json()["id"])

    def start_task(self, task_id: str) -> dict[str, Any]:
        """A start task as the batch get returns it."""
        found: dict[str, Any] = self.read("/api/v1/app-conversations/start-tasks", ids=task_id)[0]
        return found

    def await_start(self, task_id: str, *, status: str = "READY", deadline_seconds: float = 240) -> dict[str, Any]:
        """Wait until a start task is final, and assert its status; return the task."""
        eventually(lambda: self.start_task(task_id)["status"] in ("READY", "ERROR"), deadline_seconds=deadline_seconds)
        task = self.start_task(task_id)
        assert task["status"] == status, task
        return task

    def read(self, path: str, **params: Any) -> Any:
        """The body of the response to a GET."""
        response = self.get(path, params=params)
        assert response.status_code == 200, response.text
        return response.json()
