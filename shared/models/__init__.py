"""The database tables. They are not wire formats: those are in `api.schemas`."""

from shared.models.change_feed import ChangeEntry, ChangeFeed, ListVersion
from shared.models.conversations import Conversation, Event, PendingMessage, StartTask
from shared.models.idempotency import IdempotencyKey
from shared.models.nodes import Installation, ModelServer, Node, NodeSpecBackoff, SandboxSpec, UnknownContainer
from shared.models.sandboxes import Sandbox, SandboxLog, SandboxTransition, StaleContainer
from shared.models.users import (
    ApiKey,
    AuditEntry,
    DeviceAuthorization,
    ProviderToken,
    Role,
    Secret,
    StoredUsage,
    User,
    UserSettings,
    WebSession,
)
