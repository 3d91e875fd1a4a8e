"""Sandboxes: start, pause, resume, delete."""

from collections.abc import Callable, Mapping

from sqlmodel import select

from shared.clock import now
from shared.ids import new_id
from shared.models import Sandbox
from shared.sandboxes import specs
from shared.states import Status
from shared.warm_pool import start as sandbox_start
from tests.drills.engine_listing import sandbox_name
from tests.drills.faults.operation import Operation, Prepare, no_subject, routine
from tests.drills.faults.runner import Runner
from tests.drills.faults.specs import BROKEN_IMAGE, FRAGILE_IMAGE, MISSING, NAMED_IMAGE, PULLED, SLOW_IMAGE
from tests.drills.faults.user_requests import SANDBOXES, record_request, send
from tests.drills.requests import Outcome, Verb
from tests.services.engine import TINY_IMAGE
from tests.services.private_engine import detach_disk
from tests.waiting import eventually

START = frozenset({"POST /sandboxes", "sandboxes.start"})


# --- subjects ---------------------------------------------------------------------------------------------------------


def running(runner: Runner, image: str = TINY_IMAGE) -> str:
    """A running sandbox."""
    sandbox_id = runner.client.start(image)
    assert sandbox_id is not None
    runner.await_status(sandbox_id, Status.RUNNING)
    return sandbox_id


def paused(runner: Runner) -> str:
    """A frozen sandbox."""
    sandbox_id = running(runner)
    runner.client.pause(sandbox_id)
    runner.await_status(sandbox_id, Status.PAUSED)
    return sandbox_id


def fragile(runner: Runner) -> str:
    """A sandbox whose container the test may kill or remove."""
    return running(runner, FRAGILE_IMAGE)


def without_a_loop_device(runner: Runner) -> str:
    """A stopped sandbox whose disk is detached, as after a reboot."""
    sandbox_id = running(runner)
    stop(runner, sandbox_id)
    runner.await_status(sandbox_id, Status.PAUSED)
    assert detach_disk(runner.bounds.disk_image(sandbox_id))
    return sandbox_id


def with_host_names(runner: Runner) -> str:
    """A running sandbox with two host names in its egress."""
    _set_egress(runner, "allowed.example,more.example")
    return running(runner, NAMED_IMAGE)


def shrink_egress(runner: Runner, _sandbox_id: str) -> None:
    """Remove one of the host names, as an operator."""
    _set_egress(runner, "allowed.example")


def _set_egress(runner: Runner, egress: str) -> None:
    with runner.service.database.transaction() as session:
        specs.change(session, NAMED_IMAGE, {"egress": egress})


def stopped(runner: Runner) -> str:
    """A sandbox in ERROR, whose container was killed from outside."""
    return _in_error(runner, "kill")


def removed(runner: Runner) -> str:
    """A sandbox in ERROR, whose container was removed from outside."""
    return _in_error(runner, "rm", "--force")


def not_pulled(runner: Runner) -> str:
    """An image that the engine has not pulled."""
    image = f"{runner.registry}/{PULLED}"
    if runner.engine.docker("images", "--quiet", image):
        runner.engine.docker("rmi", image)
    return image


def new_key(_runner: Runner) -> str:
    """A new idempotency key."""
    return new_id()


def _in_error(runner: Runner, *command: str) -> str:
    sandbox_id = fragile(runner)
    runner.engine.docker(*command, sandbox_name(sandbox_id))
    with runner.released():
        runner.await_status(sandbox_id, Status.ERROR)
        eventually(runner.is_at_rest)
    return sandbox_id


# --- start ------------------------------------------------------------------------------------------------------------


def start(image: str) -> Callable[[Runner, str], None]:
    """An act that starts a sandbox from this image."""

    def act(runner: Runner, _subject: str) -> None:
        runner.client.start(image)

    return act


def _start_from_registry(name: str, *, prepare: Prepare = no_subject) -> Operation:
    """The start of a sandbox from a registry's image; each lane has its own repository."""

    def act(runner: Runner, _subject: str) -> None:
        runner.client.start(f"{runner.registry}/{name}")

    return Operation(owns=frozenset({"sandboxes.start"}), prepare=prepare, act=act)


def _start_with_key(runner: Runner, key: str) -> None:
    send(runner, "POST", SANDBOXES, Verb.START, key)


def _assert_created_once(runner: Runner, key: str) -> None:
    """Assert that a retry with the same key returns the same sandbox, and that there is no other."""
    response = send(runner, "POST", SANDBOXES, Verb.START, key)
    assert response is not None
    with runner.service.database.reading() as session:
        assert session.exec(select(Sandbox.id)).all() == [response.json()["id"]]


def _start_in_place_of(runner: Runner, sandbox_id: str) -> None:
    """Start a sandbox for which the quota pauses the other one."""
    call = runner.client.history.invoke(Verb.PAUSE, sandbox_id)
    response = send(runner, "POST", SANDBOXES, Verb.START)
    if response is not None:
        assert response.json()["paused_sandbox_ids"] == [sandbox_id]
        runner.client.history.complete(call, Outcome.OK, Verb.PAUSE, sandbox_id)


def _start_without_message(runner: Runner, _subject: str) -> None:
    """Create a sandbox's row without a job message, as if the message were lost."""
    with runner.service.database.transaction() as session:
        spec, owner_id = specs.get_spec(session, TINY_IMAGE), runner.client.user.id
        made = sandbox_start.start(session, runner.service.vault, owner_id=owner_id, spec=spec, due_at=now()).sandbox
    record_request(runner, Verb.START, made.id)


# --- pause, resume, delete --------------------------------------------------------------------------------------------


def pause(runner: Runner, sandbox_id: str) -> None:
    """Pause the sandbox."""
    runner.client.pause(sandbox_id)


def stop(runner: Runner, sandbox_id: str) -> None:
    """Stop the sandbox."""
    runner.client.stop(sandbox_id)


def resume(runner: Runner, sandbox_id: str) -> None:
    """Resume the sandbox."""
    runner.client.resume(sandbox_id)


def delete(runner: Runner, sandbox_id: str) -> None:
    """Delete the sandbox."""
    runner.client.delete(sandbox_id)


def read_log(runner: Runner, sandbox_id: str) -> None:
    """Read the log of the sandbox's container."""
    send(runner, "GET", f"{SANDBOXES}/{sandbox_id}/logs")


def _log_is_read(runner: Runner, sandbox_id: str) -> None:
    """Assert that a retry returns the log."""

    def is_read() -> bool:
        response = send(runner, "GET", f"{SANDBOXES}/{sandbox_id}/logs")
        return response is not None and response.json()["is_live"] and bool(response.json()["containers"][0]["lines"])

    eventually(is_read)


def _log_is_kept(runner: Runner, sandbox_id: str) -> None:
    """Assert, after a retry of the delete, that the log of the sandbox is stored once."""
    runner.client.delete(sandbox_id)
    runner.await_agreement()
    response = send(runner, "GET", f"{SANDBOXES}/{sandbox_id}/logs")
    assert response is not None
    [log] = response.json()["containers"]
    assert (log["cause"], bool(log["lines"])) == ("removed", True)


PAUSE = frozenset({"POST /sandboxes/{sandbox_id}/pause", "sandboxes.pause"})
RESUME = frozenset({"POST /sandboxes/{sandbox_id}/resume", "sandboxes.resume"})
READ_LOG = frozenset({"GET /sandboxes/{sandbox_id}/logs", "sandboxes.read_log"})
DELETE = frozenset({"DELETE /sandboxes/{sandbox_id}", "sandboxes.delete"})

# Writes that determine what a sandbox can reach.
ACCESS = frozenset({"egress.write", "egress.remove", "firewall.change", "firewall.disconnect"})

OPERATIONS: Mapping[str, Operation] = {
    "start": Operation(owns=START, act=start(TINY_IMAGE)),
    "pause": Operation(owns=PAUSE, prepare=running, act=pause),
    "stop": Operation(owns=PAUSE, prepare=running, act=stop),
    "resume": Operation(owns=RESUME, prepare=paused, act=resume),
    "delete": Operation(owns=DELETE, prepare=running, act=delete, verify=_log_is_kept),
    "read-log": Operation(owns=READ_LOG, prepare=running, act=read_log, verify=_log_is_read),
    "failing-start": Operation(owns=frozenset({"sandboxes.start"}), act=start(BROKEN_IMAGE)),
    "start-with-host-names": Operation(owns=START, act=start(NAMED_IMAGE), writes=ACCESS),
    "delete-with-host-names": Operation(owns=DELETE, prepare=with_host_names, act=delete, writes=ACCESS),
    "network-with-less-egress": routine("network", prepare=with_host_names, act=shrink_egress),
    "pull": _start_from_registry(PULLED, prepare=not_pulled),
    "failing-pull": _start_from_registry(MISSING),
    "start-with-an-idempotency-key": Operation(
        owns=frozenset({"POST /sandboxes"}), prepare=new_key, act=_start_with_key, verify=_assert_created_once
    ),
    "start-that-pauses-another": Operation(
        owns=frozenset({"POST /sandboxes"}),
        prepare=running,
        act=_start_in_place_of,
        settings={"AW_QUOTA_RUNNING": "1", "AW_QUOTA_POLICY": "pause_oldest"},
    ),
    "resume-stopped": Operation(owns=RESUME, prepare=stopped, act=resume),
    "resume-with-a-detached-disk": Operation(owns=RESUME, prepare=without_a_loop_device, act=resume),
    "resume-removed": Operation(owns=RESUME, prepare=removed, act=resume),
    "sweep-after-a-lost-message": routine("sweep", act=_start_without_message, owns=frozenset({"sandboxes.check"})),
    "leases": Operation(owns=frozenset({"leases"}), act=start(SLOW_IMAGE)),
}
