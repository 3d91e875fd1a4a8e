"""The tables. Nothing here goes over the wire: `api.schemas` has the wire's shapes."""

from shared.models.changes import ChangeEntry, ChangeLog
from shared.models.conversations import Conversation, Event, PendingMessage, StartTask
from shared.models.device_authorizations import DeviceAuthorization
from shared.models.idempotency import IdempotencyKey
from shared.models.lists import ListVersion
from shared.models.nodes import Installation, Node, NodeRefusal, SandboxSpec, UnknownContainer
from shared.models.sandboxes import Sandbox, SandboxLeftover, SandboxTransition
from shared.models.users import ApiKey, ProviderToken, Secret, User, UserSettings
from shared.models.web_sessions import WebSession

__all__ = [
    "ApiKey",
    "ChangeEntry",
    "ChangeLog",
    "Conversation",
    "DeviceAuthorization",
    "Event",
    "IdempotencyKey",
    "Installation",
    "ListVersion",
    "Node",
    "NodeRefusal",
    "PendingMessage",
    "ProviderToken",
    "Sandbox",
    "SandboxLeftover",
    "SandboxSpec",
    "SandboxTransition",
    "Secret",
    "StartTask",
    "UnknownContainer",
    "User",
    "UserSettings",
    "WebSession",
]
