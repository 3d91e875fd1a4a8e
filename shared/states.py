"""The states of sandboxes and start tasks, and the legal moves between them."""

from enum import StrEnum


class Desired(StrEnum):
    """What the owner wishes a sandbox to be."""

    RUNNING = "RUNNING"
    # Frozen; one that is stopped already stays so.
    PAUSED = "PAUSED"
    # Its memory freed, its files kept.
    STOPPED = "STOPPED"
    DELETED = "DELETED"

    @property
    def is_paused(self) -> bool:
        """Whether its status is PAUSED once this is so."""
        return self in (Desired.PAUSED, Desired.STOPPED)


class Status(StrEnum):
    """What a sandbox is, as last seen by a worker."""

    # Wished for, and not healthy yet.
    STARTING = "STARTING"
    # Its agent server answered with this sandbox's key.
    RUNNING = "RUNNING"
    # Frozen or stopped: its files are kept.
    PAUSED = "PAUSED"
    # Something failed; `reason` says what.
    ERROR = "ERROR"
    # Its container, volume or network may still exist.
    DELETING = "DELETING"
    # Confirmed gone: the row is a tombstone.
    DELETED = "DELETED"


MOVES: dict[Status, frozenset[Status]] = {
    Status.STARTING: frozenset({Status.RUNNING, Status.PAUSED, Status.ERROR, Status.DELETING}),
    Status.RUNNING: frozenset({Status.STARTING, Status.PAUSED, Status.ERROR, Status.DELETING}),
    # From frozen to stopped, too.
    Status.PAUSED: frozenset({Status.PAUSED, Status.STARTING, Status.RUNNING, Status.ERROR, Status.DELETING}),
    Status.ERROR: frozenset({Status.STARTING, Status.RUNNING, Status.PAUSED, Status.DELETING}),
    Status.DELETING: frozenset({Status.DELETED}),
    Status.DELETED: frozenset(),
}


class PauseKind(StrEnum):
    """How a paused sandbox is held."""

    FROZEN = "FROZEN"  # processes stand still, memory is kept
    STOPPED = "STOPPED"  # processes are gone, files are kept


class Stage(StrEnum):
    """Where a start task is; V1's names and order (wire contract 2.2)."""

    WORKING = "WORKING"
    WAITING_FOR_SANDBOX = "WAITING_FOR_SANDBOX"
    PREPARING_REPOSITORY = "PREPARING_REPOSITORY"
    RUNNING_SETUP_SCRIPT = "RUNNING_SETUP_SCRIPT"
    SETTING_UP_GIT_HOOKS = "SETTING_UP_GIT_HOOKS"
    SETTING_UP_SKILLS = "SETTING_UP_SKILLS"
    STARTING_CONVERSATION = "STARTING_CONVERSATION"
    READY = "READY"
    ERROR = "ERROR"

    @property
    def is_final(self) -> bool:
        """Whether nothing follows."""
        return self in (Stage.READY, Stage.ERROR)


FINAL_STAGES = (Stage.READY, Stage.ERROR)


def stage_moves(stage: Stage) -> frozenset[Stage]:
    """The stages that may follow: any later one, the same one again after a crash, or ERROR."""
    if stage.is_final:
        return frozenset()
    order = list(Stage)
    return frozenset(order[order.index(stage) :])


class NodeStatus(StrEnum):
    """Whether a node takes new sandboxes."""

    READY = "READY"  # its worker and its engine answer
    CORDONED = "CORDONED"  # an operator keeps new sandboxes away
    LOST = "LOST"  # its engine or its worker no longer answers


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
    NODE_LOST = "node_lost"
    # of the warm pool
    CLAIMED = "claimed"
    RETIRED = "retired"
    NOT_DORMANT = "not_dormant"
    # of a container that a store which went back in time takes for spare or idle
    ALREADY_USED = "already_used"
    INITIALIZE_FAILED = "initialize_failed"
    # by its owner's wish for another
    MADE_ROOM = "made_room"
    # by a deadline
    IDLE_FROZEN = "idle_frozen"
    IDLE_STOPPED = "idle_stopped"
    IDLE_DELETED = "idle_deleted"
    EXPIRED = "expired"
    # of start tasks
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


class DeadlineAction(StrEnum):
    """What a deadline does."""

    FREEZE = "freeze"
    STOP = "stop"
    DELETE = "delete"
    # The sandbox has reached its greatest age: it is deleted too.
    EXPIRE = "expire"

    @property
    def wish(self) -> tuple[Desired, Reason]:
        """What it wishes a sandbox to be, and why."""
        return WISHES[self]


WISHES = {
    DeadlineAction.FREEZE: (Desired.PAUSED, Reason.IDLE_FROZEN),
    DeadlineAction.STOP: (Desired.STOPPED, Reason.IDLE_STOPPED),
    DeadlineAction.DELETE: (Desired.DELETED, Reason.IDLE_DELETED),
    DeadlineAction.EXPIRE: (Desired.DELETED, Reason.EXPIRED),
}
