"""The states of sandboxes and start tasks, and the legal transitions between them."""

from enum import StrEnum


class Desired(StrEnum):
    RUNNING = "RUNNING"
    # Memory and files kept. A sandbox that is already stopped stays stopped.
    PAUSED = "PAUSED"
    # Memory freed, files kept.
    STOPPED = "STOPPED"
    DELETED = "DELETED"


# Desired states in which a reconciled sandbox has the status PAUSED.
PAUSING = frozenset({Desired.PAUSED, Desired.STOPPED})


class Status(StrEnum):
    """The observed state of a sandbox, as a worker last recorded it."""

    # Requested, and not healthy yet.
    STARTING = "STARTING"
    # Its agent server responds and accepts this sandbox's key.
    RUNNING = "RUNNING"
    # Paused with its memory, or stopped: its files are kept.
    PAUSED = "PAUSED"
    # Something failed; `reason` says what.
    ERROR = "ERROR"
    # Its container, volume or network may still exist.
    DELETING = "DELETING"
    # Confirmed gone: the row is a tombstone.
    DELETED = "DELETED"


TRANSITIONS: dict[Status, frozenset[Status]] = {
    Status.STARTING: frozenset({Status.RUNNING, Status.PAUSED, Status.ERROR, Status.DELETING}),
    Status.RUNNING: frozenset({Status.STARTING, Status.PAUSED, Status.ERROR, Status.DELETING}),
    # PAUSED to PAUSED: from FROZEN to STOPPED.
    Status.PAUSED: frozenset({Status.PAUSED, Status.STARTING, Status.RUNNING, Status.ERROR, Status.DELETING}),
    Status.ERROR: frozenset({Status.STARTING, Status.RUNNING, Status.PAUSED, Status.DELETING}),
    Status.DELETING: frozenset({Status.DELETED}),
    Status.DELETED: frozenset(),
}


class PauseKind(StrEnum):
    """What a paused sandbox keeps."""

    FROZEN = "FROZEN"  # processes are suspended, memory is kept
    STOPPED = "STOPPED"  # processes have ended, files are kept


class Stage(StrEnum):
    """The stage of a start task; V1's names and order (wire contract 2.2)."""

    WORKING = "WORKING"
    WAITING_FOR_SANDBOX = "WAITING_FOR_SANDBOX"
    PREPARING_REPOSITORY = "PREPARING_REPOSITORY"
    RUNNING_SETUP_SCRIPT = "RUNNING_SETUP_SCRIPT"
    SETTING_UP_GIT_HOOKS = "SETTING_UP_GIT_HOOKS"
    SETTING_UP_SKILLS = "SETTING_UP_SKILLS"
    STARTING_CONVERSATION = "STARTING_CONVERSATION"
    READY = "READY"
    ERROR = "ERROR"


# No stage follows these.
FINAL_STAGES = (Stage.READY, Stage.ERROR)
# The stages that may follow each one: any later one, the same one after a crash, or ERROR.
STAGE_TRANSITIONS: dict[str, frozenset[Stage]] = {
    stage: frozenset(() if stage in FINAL_STAGES else list(Stage)[place:]) for place, stage in enumerate(Stage)
}


class NodeStatus(StrEnum):
    """Whether a node takes new sandboxes."""

    READY = "READY"  # its worker and its engine respond
    CORDONED = "CORDONED"  # an operator has closed it to new sandboxes
    LOST = "LOST"  # its engine or its worker no longer responds


class Reason(StrEnum):
    """Why something failed, for machines; the `detail` beside it is for people (law 10)."""

    IMAGE_PULL_FAILED = "image_pull_failed"
    CREATE_FAILED = "create_failed"
    START_FAILED = "start_failed"
    OOM_KILLED = "oom_killed"
    EXIT_CODE = "exit_code"
    HEALTH_TIMEOUT = "health_timeout"
    WRONG_SERVER = "wrong_agent_server"
    CONTAINER_MISSING = "container_missing"
    PAUSED_OUTSIDE = "paused_outside"
    RESUMED_OUTSIDE = "resumed_outside"
    ENGINE_ERROR = "engine_error"
    DOOR_UNAVAILABLE = "door_unavailable"
    SECRET_KEY_MISSING = "secret_key_missing"  # noqa: S105 - a name
    NODE_LOST = "node_lost"
    # Of the warm pool:
    CLAIMED = "claimed"
    RETIRED = "retired"
    NOT_DORMANT = "not_dormant"
    # Of a container that a database restored from a backup lists as warm or idle:
    ALREADY_USED = "already_used"
    INITIALIZE_FAILED = "initialize_failed"
    # By its owner's request for another sandbox:
    MADE_ROOM = "made_room"
    # By a deadline:
    IDLE_FROZEN = "idle_frozen"
    IDLE_STOPPED = "idle_stopped"
    IDLE_DELETED = "idle_deleted"
    EXPIRED = "expired"
    # Of start tasks:
    CANCELLED = "cancelled"
    LLM_KEY_MISSING = "llm_key_missing"
    SANDBOX_FAILED = "sandbox_failed"
    SANDBOX_PAUSED = "sandbox_paused"
    SANDBOX_DELETED = "sandbox_deleted"
    CLONE_FAILED = "clone_failed"
    SETUP_SCRIPT_FAILED = "setup_script_failed"
    GIT_HOOKS_FAILED = "git_hooks_failed"
    WORKSPACE_SETUP_FAILED = "workspace_setup_failed"
    AGENT_SERVER_REFUSED = "agent_server_refused"
    AGENT_SERVER_UNREACHABLE = "agent_server_unreachable"
    UNUSABLE_SECRET = "unusable_secret"  # noqa: S105 - the name of a reason
    INTERNAL_ERROR = "internal_error"


# The longest time until an action of a deadline: ten years.
MAX_DEADLINE_SECONDS = 10 * 365 * 24 * 60 * 60


class DeadlineAction(StrEnum):
    FREEZE = "freeze"
    STOP = "stop"
    DELETE = "delete"
    # The sandbox has reached its max age: it is deleted.
    EXPIRE = "expire"

    @property
    def outcome(self) -> tuple[Desired, Reason]:
        """The desired state that the action sets, and the reason."""
        return OUTCOMES[self]


OUTCOMES = {
    DeadlineAction.FREEZE: (Desired.PAUSED, Reason.IDLE_FROZEN),
    DeadlineAction.STOP: (Desired.STOPPED, Reason.IDLE_STOPPED),
    DeadlineAction.DELETE: (Desired.DELETED, Reason.IDLE_DELETED),
    DeadlineAction.EXPIRE: (Desired.DELETED, Reason.EXPIRED),
}
