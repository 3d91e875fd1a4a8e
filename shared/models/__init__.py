"""The database tables. They are not wire formats: those are in `api.schemas`."""

from shared.models.change_feed import ChangeEntry, ChangeFeed
from shared.models.conversations import Conversation, Event, PendingMessage, StartTask
from shared.models.device_authorizations import DeviceAuthorization
from shared.models.idempotency import IdempotencyKey
from shared.models.list_version import ListVersion
from shared.models.nodes import Installation, Node, NodeSpecBackoff, SandboxSpec, UnknownContainer
from shared.models.sandboxes import Sandbox, SandboxTransition, StaleContainer
from shared.models.users import ApiKey, ProviderToken, Secret, User, UserSettings
from shared.models.web_sessions import WebSession

__all__ = [
    "ApiKey",
    "ChangeEntry",
    "ChangeFeed",
    "Conversation",
    "DeviceAuthorization",
    "Event",
    "IdempotencyKey",
    "Installation",
    "ListVersion",
    "Node",
    "NodeSpecBackoff",
    "PendingMessage",
    "ProviderToken",
    "Sandbox",
    "SandboxSpec",
    "SandboxTransition",
    "Secret",
    "StaleContainer",
    "StartTask",
    "UnknownContainer",
    "User",
    "UserSettings",
    "WebSession",
]
