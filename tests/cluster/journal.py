"""The acknowledged writes of a load, compared with the final state of the service."""

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.services import http

# The number of ids in a batch get.
BATCH = 100


@dataclass
class Journal:
    """The acknowledged writes."""

    # The last requested status of each sandbox; None: deleted.
    sandboxes: dict[str, str | None] = field(default_factory=dict)
    secrets: set[str] = field(default_factory=set)
    # The texts of the accepted messages, by conversation.
    messages: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    # The ids of the start tasks of conversations.
    tasks: set[str] = field(default_factory=set)

    def add_conversation(self, conversation_id: str, sandbox_id: str) -> None:
        """Record a conversation, whose sandbox is never deleted."""
        self.request_status(sandbox_id, "RUNNING")
        self.messages[conversation_id] = []

    def add_message(self, conversation_id: str, text: str) -> None:
        """Record an accepted message."""
        self.messages[conversation_id].append(text)

    def request_status(self, sandbox_id: str, status: str | None) -> None:
        """Record an acknowledged change of a sandbox's status, or its delete."""
        self.sandboxes[sandbox_id] = status

    def is_requested(self, sandbox_id: str, status: str) -> bool:
        """Whether this is the last requested status of a sandbox."""
        return self.sandboxes.get(sandbox_id) == status

    @property
    def kept(self) -> list[str]:
        """The sandboxes that were not deleted."""
        return [sandbox_id for sandbox_id, status in self.sandboxes.items() if status is not None]

    def describe(self) -> str:
        """The numbers of writes of each kind."""
        messages = sum(map(len, self.messages.values()))
        deleted = len(self.sandboxes) - len(self.kept)
        return (
            f"{len(self.sandboxes)} sandboxes, {deleted} of them deleted; {len(self.tasks)} starts of conversations; "
            f"{messages} messages; {len(self.secrets)} secrets left"
        )

    def find_wrong(self, url: str, key: str) -> list[str]:
        """The differences between the service's state and the acknowledged writes."""
        with http.open_client(url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as client:
            return [
                *self._wrong_sandboxes(client),
                *self._wrong_tasks(client),
                *self._wrong_secrets(client),
                *self._lost_messages(client),
            ]

    def _wrong_sandboxes(self, client: httpx.Client) -> list[str]:
        found = _by_id(client, "/api/v1/sandboxes", "id", [*self.sandboxes])
        return [
            f"sandbox {sandbox_id}: {found[sandbox_id]} instead of {status}"
            for sandbox_id, status in self.sandboxes.items()
            if (found[sandbox_id] or {}).get("status") != status
        ]

    def _wrong_tasks(self, client: httpx.Client) -> list[str]:
        found = _by_id(client, "/api/v1/app-conversations/start-tasks", "ids", [*self.tasks])
        return [f"start {task_id}: {task}" for task_id, task in found.items() if (task or {}).get("status") != "READY"]

    def _wrong_secrets(self, client: httpx.Client) -> list[str]:
        found = {item["name"] for item in _pages(client, "/api/v1/secrets/search")}
        return [f"secret {name}" for name in sorted(found ^ self.secrets)]

    def _lost_messages(self, client: httpx.Client) -> list[str]:
        lost = []
        for conversation_id, texts in self.messages.items():
            events = _pages(client, f"/api/v1/conversation/{conversation_id}/events/search")
            found = {text for event in events if (text := _text_of(event))}
            lost += [f"{text} of {conversation_id}" for text in texts if text not in found]
        return lost


def _by_id(client: httpx.Client, path: str, name: str, ids: list[str]) -> dict[str, dict[str, Any] | None]:
    found: dict[str, dict[str, Any] | None] = {}
    for begin in range(0, len(ids), BATCH):
        batch = ids[begin : begin + BATCH]
        response = client.get(path, params={name: batch})
        assert response.status_code == 200, response.text
        found |= dict(zip(batch, response.json(), strict=True))
    return found


def _pages(client: httpx.Client, path: str) -> list[dict[str, Any]]:
    items, page = list[dict[str, Any]](), ""
    while True:
        response = client.get(path, params={"limit": 100} | ({"page_id": page} if page else {}))
        assert response.status_code == 200, response.text
        items += response.json()["items"]
        page = response.json().get("next_page_id") or ""
        if not page:
            return items


def _text_of(event: dict[str, Any]) -> str:
    content = (event.get("llm_message") or {}).get("content") or [{}]
    return str(content[0].get("text", "")) if isinstance(content, list) else ""
