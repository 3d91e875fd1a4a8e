"""Requests about a conversation."""

from typing import Any

from fastapi.testclient import TestClient

from shared.models import Conversation
from tests.factories import ApiUser

PATH = "/api/v1/app-conversations"


def send(
    client: TestClient, user: ApiUser, conversation: Conversation, method: str, path: str, body: Any = None
) -> Any:
    """Send a user's request about a conversation; return the response."""
    return client.request(method, f"{PATH}/{conversation.id}/{path}", json=body, headers=user.headers)
