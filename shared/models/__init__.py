"""The tables. Nothing here goes over the wire: `api.schemas` has the wire's shapes."""

from shared.models.changes import ChangeEntry, ChangeLog
from shared.models.conversations import Conversation, Event, StartTask
from shared.models.idempotency import IdempotencyKey
from shared.models.lists import ListVersion
from shared.models.nodes import Installation, Node, NodeRefusal, SandboxSpec
from shared.models.sandboxes import Sandbox, SandboxLeftover, SandboxTransition
from shared.models.users import ApiKey, ProviderToken, Secret, User, UserSettings

__all__ = [
    "ApiKey",
    "ChangeEntry",
    "ChangeLog",
    "Conversation",
    "Event",
    "IdempotencyKey",
    "Installation",
    "ListVersion",
    "Node",
    "NodeRefusal",
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
