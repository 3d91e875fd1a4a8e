"""The operations that processes are killed in: whose points are their own, what they do, and to what."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.drills.faults import afterwards, given, happenings, requests, specs, visits
from tests.drills.faults.runner import Runner
from tests.services.engine import TINY_IMAGE

# What the worker does by itself, and might do in place of the job that is to be killed.
ROUTINES = frozenset({"sweep", "resync", "events", "nodes", "health"})


def nothing(_runner: Runner) -> str:
    """Some things are done to nothing."""
    return ""


def no_more(_runner: Runner, _subject: str) -> None:
    """What the checker asks is all."""


@dataclass(frozen=True)
class Operation:
    """One thing that is asked for, or happens.

    Args:
        owns: the routes, jobs and routines whose points belong to it.
        prepare: makes what it is done to, and names that.
        verify: what must be so afterwards, beside what the checker asks.
        holds: the routines that are held back until the process is dead, so that nothing else does the work.
        lets: those of them that are let go as soon as it is done.
        settings: of the processes, beside their own.
        writes: which of its points count, where the others are another operation's too; none: all.
    """

    owns: frozenset[str]
    act: Callable[[Runner, str], None]
    prepare: Callable[[Runner], str] = nothing
    verify: Callable[[Runner, str], None] = no_more
    holds: frozenset[str] = ROUTINES
    lets: frozenset[str] = frozenset()
    settings: Mapping[str, str] = field(default_factory=dict)
    writes: frozenset[str] = frozenset()

    @property
    def recovery(self) -> frozenset[str]:
        """Whose points may be met while what was broken off is carried out."""
        return self.owns | {"process", "sweep", "sandboxes.check"}

    def counts(self, point: str) -> bool:
        """Whether processes are to die at this one of its points."""
        return not self.writes or point.rsplit("/", 1)[-1].rsplit(".", 1)[0] in self.writes


def _wish(verb: str, prepare: Callable[[Runner], str], *writes: str) -> Operation:
    """A wish for a sandbox that is there."""
    route = "DELETE /sandboxes/{sandbox_id}" if verb == "delete" else f"POST /sandboxes/{{sandbox_id}}/{verb}"
    return Operation(
        frozenset({route, f"sandboxes.{verb}"}),
        lambda runner, sandbox_id: getattr(runner.client, verb)(sandbox_id),
        prepare,
        writes=frozenset(writes),
    )


def _start(image: str, *owns: str, prepare: Callable[[Runner], str] = nothing) -> Operation:
    """A wish for a new sandbox."""
    return Operation(frozenset(owns), lambda runner, _: _forget(runner.client.start(image)), prepare)


def _start_of(name: str, prepare: Callable[[Runner], str] = nothing) -> Operation:
    """A wish for a sandbox whose image must be pulled."""

    def act(runner: Runner, _subject: str) -> None:
        runner.client.start(f"{runner.registry}/{name}")

    return Operation(frozenset({"sandboxes.start"}), act, prepare)


def _conversation(
    prepare: Callable[[Runner], str],
    verify: Callable[[Runner, str], None],
    *writes: str,
    act: Callable[[Runner, str], None] = requests.converse,
    lets: frozenset[str] = frozenset(),
) -> Operation:
    """A wish for a conversation in a sandbox that is there."""
    owns = frozenset({"POST /app-conversations", "conversations.start"})
    return Operation(owns, act, prepare, verify, lets=lets, writes=frozenset(writes))


def _routine(
    name: str,
    act: Callable[[Runner, str], None],
    prepare: Callable[[Runner], str] = nothing,
    verify: Callable[[Runner, str], None] = no_more,
    *owns: str,
) -> Operation:
    """Something that a routine sees to, which waits until it has happened."""
    holds = ROUTINES | {name}
    return Operation(frozenset({name, *owns}), act, prepare, verify, holds, frozenset({name}))


def _forget(_answer: str | None) -> None:
    """What was answered is in the history."""


VISIT = "GET /sandbox/{sandbox_id}"
END = "DELETE /app-conversations/{conversation_id}"
SWEPT = frozenset({"sweep"})
DELIVERY = frozenset({"conversations.deliver"})
REMOVAL = frozenset({"sandboxes.delete"})
CREATE = "agent_server.start_the_conversation"
MESSAGE = "agent_server.take_a_message"
PROFILE = "agent_server.keep_a_profile"
FORGET = "agent_server.delete_the_conversation"
OPERATIONS: Mapping[str, Operation] = {
    "start": _start(TINY_IMAGE, "POST /sandboxes", "sandboxes.start"),
    "pause": _wish("pause", given.running),
    "resume": _wish("resume", given.paused),
    "delete": _wish("delete", given.running),
    "claim": _start(specs.POOLED_IMAGE, "POST /sandboxes", "sandboxes.start", prepare=given.pooled),
    "failing-start": _start(specs.BROKEN_IMAGE, "sandboxes.start"),
    "pull": _start_of(specs.PULLED, given.not_pulled),
    "failing-pull": _start_of(specs.MISSING),
    "start-under-a-key": Operation(
        frozenset({"POST /sandboxes"}), requests.start_once, given.name_key, afterwards.made_once
    ),
    "start-in-anothers-place": Operation(
        frozenset({"POST /sandboxes"}),
        requests.start_another,
        given.running,
        settings={"AW_QUOTA_RUNNING": "1", "AW_QUOTA_POLICY": "pause_oldest"},
    ),
    "wake": Operation(frozenset({VISIT, "sandboxes.resume"}), visits.visit, given.paused, visits.woken_once),
    "traffic": Operation(frozenset({VISIT}), visits.visit, visits.unused, visits.noticed),
    "resume-stopped": _wish("resume", given.stopped),
    "resume-removed": _wish("resume", given.removed),
    "delete-at-work": _wish("delete", given.conversing, "agent_server.interrupt_the_conversation"),
    # The tiny image's agent server knows no conversations: it answers 404.
    "refused-conversation": Operation(
        frozenset({"POST /app-conversations", "conversations.start"}),
        lambda runner, _: _forget(runner.client.converse()),
    ),
    "conversation": _conversation(given.talking, afterwards.begun_once),
    "conversation-without-its-message": _conversation(
        given.forgetful, afterwards.begun_once, CREATE, MESSAGE, lets=SWEPT
    ),
    "conversation-without-a-title": _conversation(
        given.talking, afterwards.begun_untitled_once, PROFILE, act=requests.converse_untitled
    ),
    "refused-conversation-in-a-sandbox": _conversation(
        given.refusing, afterwards.refused_once, CREATE, FORGET, lets=SWEPT
    ),
    "delete-conversation": Operation(
        frozenset({END, "conversations.delete"}),
        requests.delete_conversation,
        given.conversing_twice,
        afterwards.forgotten,
    ),
    "delete-last-conversation": Operation(
        frozenset({END, "conversations.delete", "sandboxes.delete"}),
        requests.delete_last_conversation,
        given.conversing,
        # Or the end of the sandbox might ask for another look at the conversation, or might not.
        holds=ROUTINES | REMOVAL,
        lets=REMOVAL,
    ),
    "resume-with-a-deleted-conversation": Operation(
        frozenset({"sandboxes.resume", "conversations.refresh"}),
        lambda runner, sandbox_id: runner.client.resume(sandbox_id),
        given.remembering,
        afterwards.forgotten,
    ),
    "messages": Operation(
        frozenset({"POST /conversations/{conversation_id}/pending-messages", "conversations.deliver"}),
        requests.say,
        given.conversing,
        afterwards.told_each_once,
        # Or the first might be delivered before the second is said, or might not: that is for chance to say.
        holds=ROUTINES | DELIVERY,
        lets=DELIVERY,
    ),
    "resume-with-messages": Operation(
        frozenset({"conversations.refresh"}),
        lambda runner, sandbox_id: runner.client.resume(sandbox_id),
        given.unheard,
        afterwards.told_each_once,
    ),
    "resume-with-a-message-half-told": Operation(
        frozenset({"conversations.refresh"}),
        lambda runner, sandbox_id: runner.client.resume(sandbox_id),
        given.half_told,
        afterwards.told_each_once,
    ),
    "cancel": Operation(
        frozenset({"POST /app-conversations/start-tasks/{task_id}/cancel", "conversations.cancel"}),
        requests.cancel_start,
        given.awaited,
        afterwards.cancelled,
        holds=ROUTINES | {"conversations.start"},
    ),
    "reports": Operation(
        frozenset(
            {
                "POST /webhooks/conversations",
                "POST /webhooks/events/{conversation_id}",
            }
        ),
        requests.report,
        given.conversing,
        afterwards.stored_once,
    ),
    "spent-budget": Operation(
        frozenset({"POST /webhooks/events/{conversation_id}", "conversations.refresh"}),
        requests.report_work,
        given.spent,
    ),
    "settings": Operation(frozenset({"POST /settings"}), requests.store_settings, verify=afterwards.settings_stored),
    "git-tokens": Operation(
        frozenset({"POST /add-git-providers"}), requests.store_tokens, verify=afterwards.tokens_stored
    ),
    "first-use-of-a-key": Operation(frozenset({"GET /sandboxes/search"}), requests.list_sandboxes, given.unused),
    "boot": Operation(frozenset({"process"}), happenings.boot_worker, given.no_worker),
    "sweep-of-a-lost-message": _routine("sweep", happenings.start_unheard, nothing, no_more, "sandboxes.check"),
    "sweep-of-what-waits-for-a-node": _routine("sweep", happenings.make_room, given.waiting),
    "sweep-of-a-kept-answer": _routine("sweep", happenings.leave_answer),
    "sweep-of-a-pool-that-is-wanted": _routine("sweep", happenings.fill_pool, nothing, no_more, "sandboxes.warm"),
    "sweep-of-a-pool-that-is-not": _routine("sweep", happenings.empty_pool, given.pooled, no_more, "sandboxes.delete"),
    "resync-of-a-stopped-container": _routine("resync", happenings.stop_container, given.fragile, no_more, "looks"),
    "resync-of-an-orphan": _routine("resync", happenings.leave_container),
    "events": _routine("events", happenings.stop_container, given.fragile, no_more, "looks"),
    "leases": Operation(frozenset({"leases"}), lambda runner, _: _forget(runner.client.start(specs.SLOW_IMAGE))),
    "heartbeat-with-a-leftover": _routine("heartbeat", happenings.leave_container, given.moved_away),
    "lost-node": _routine("nodes", no_more, given.lost, afterwards.moved_here),
}
