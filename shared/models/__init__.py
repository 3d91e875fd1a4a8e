"""The tables. Nothing here goes over the wire: `api.schemas` has the wire's shapes."""

from shared.models.conversations import Conversation, Event, StartTask
from shared.models.idempotency import IdempotencyKey
from shared.models.nodes import Installation, Node, SandboxSpec
from shared.models.sandboxes import Sandbox, SandboxLeftover, SandboxTransition
from shared.models.users import ApiKey, ProviderToken, Secret, User, UserSettings

__all__ = [
    "ApiKey",
    "Conversation",
    "Event",
    "IdempotencyKey",
    "Installation",
    "Node",
    "ProviderToken",
    "Sandbox",
    "SandboxLeftover",
    "SandboxSpec",
    "SandboxTransition",
    "Secret",
    "StartTask",
    "User",
    "UserSettings",
]
