"""The engine's contract, on the real engine with the tiny image and on the fake that other tests use."""

import re
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address

import pytest

from shared.clock import now
from shared.sql.clock_steps import TOLERATED
from tests.fixtures.containers import CONFIG, started, state
from tests.services.engine import TINY_IMAGE
from tests.waiting import eventually
from worker.engine.docker_client import WORKSPACE
from worker.engine.docker_engine import INSTALLATION_LABEL, SANDBOX_LABEL
from worker.engine.protocol import ContainerRequest, ContainerState, Engine, EngineRefused, ImageMissing
from worker.sandboxes.container_spec import CONFIG_PATH

MISSING_IMAGE = "agent-workspace/no-such-image:1"
CREATED, RUNNING, FROZEN = ContainerState.CREATED, ContainerState.RUNNING, ContainerState.PAUSED
EXITED, ABSENT = ContainerState.EXITED, ContainerState.ABSENT


def test_engine_has_a_stable_id(engine: Engine) -> None:
    assert engine.read_id()
    assert engine.read_id() == engine.read_id()


def test_container_goes_through_its_states(engine: Engine, request_: ContainerRequest) -> None:
    name = request_.name
    assert state(engine, name) == ContainerState.ABSENT
    engine.create(request_)
    assert state(engine, name) == ContainerState.CREATED
    started(engine, request_)
    running = engine.observe(name)
    assert running.state == ContainerState.RUNNING
    assert running.address
    assert running.started_at
    engine.pause(name)
    assert state(engine, name) == ContainerState.PAUSED
    engine.unpause(name)
    assert state(engine, name) == ContainerState.RUNNING
    assert engine.observe(name).started_at == running.started_at
    engine.stop(name, 1)
    assert state(engine, name) == ContainerState.EXITED
    engine.start(name)
    assert state(engine, name) == ContainerState.RUNNING
    restarted = engine.observe(name).started_at
    assert restarted
    assert running.started_at < restarted < now() + TOLERATED
    engine.remove(name)
    gone = engine.observe(name)
    assert (gone.state, gone.has_volume) == (ContainerState.ABSENT, False)


def test_repeated_calls_are_idempotent(engine: Engine, request_: ContainerRequest, installation: str) -> None:
    name = started(engine, request_)
    before = engine.observe(name)
    engine.create(request_)
    engine.start(name)
    assert engine.observe(name).address == before.address
    engine.pause(name)
    engine.pause(name)
    engine.unpause(name)
    engine.unpause(name)
    engine.stop(name, 1)
    engine.stop(name, 1)
    engine.remove(name)
    engine.remove(name)
    assert engine.list_containers(installation) == []
    assert engine.list_volumes(installation) == []


def test_calls_on_a_missing_container_succeed(engine: Engine, request_: ContainerRequest) -> None:
    name = request_.name
    engine.start(name)
    engine.pause(name)
    engine.unpause(name)
    engine.stop(name, 1)
    engine.remove_container(name)
    engine.remove(name)
    assert not engine.read_log(name).lines
    assert state(engine, name) == ABSENT


def test_upload_to_a_missing_container_fails(engine: Engine, request_: ContainerRequest) -> None:
    with pytest.raises(EngineRefused):
        engine.put_file(request_.name, CONFIG_PATH, CONFIG)


def test_new_files_are_seen_in_any_state(engine: Engine, request_: ContainerRequest) -> None:
    name = request_.name
    engine.create(request_)
    assert not engine.has_new_files(name)
    started(engine, request_)
    assert not engine.has_new_files(name)
    engine.put_file(name, f"{WORKSPACE}/project/text", b"mine")
    assert engine.has_new_files(name)
    engine.pause(name)
    assert engine.has_new_files(name)
    engine.stop(name, 1)
    assert engine.has_new_files(name)
    engine.remove_container(name)
    engine.create(replace(request_, has_files=True))
    assert engine.has_new_files(name), "they are on the volume"
    engine.remove(name)
    with pytest.raises(EngineRefused):
        engine.has_new_files(name)


Reach = Callable[[Engine, str], None]
ENDS: dict[ContainerState, list[Reach]] = {
    CREATED: [],
    RUNNING: [lambda engine, name: engine.start(name)],
    FROZEN: [lambda engine, name: engine.start(name), lambda engine, name: engine.pause(name)],
    EXITED: [lambda engine, name: engine.start(name), lambda engine, name: engine.stop(name, 1)],
}
# The state of a container after each verb, by its state before.
VERBS: dict[str, tuple[Reach, dict[ContainerState, ContainerState]]] = {
    "start": (
        lambda engine, name: engine.start(name),
        {CREATED: RUNNING, RUNNING: RUNNING, FROZEN: FROZEN, EXITED: RUNNING},
    ),
    "pause": (
        lambda engine, name: engine.pause(name),
        {CREATED: CREATED, RUNNING: FROZEN, FROZEN: FROZEN, EXITED: EXITED},
    ),
    "unpause": (
        lambda engine, name: engine.unpause(name),
        {CREATED: CREATED, RUNNING: RUNNING, FROZEN: RUNNING, EXITED: EXITED},
    ),
    "stop": (
        lambda engine, name: engine.stop(name, 1),
        {CREATED: CREATED, RUNNING: EXITED, FROZEN: EXITED, EXITED: EXITED},
    ),
    "remove_container": (
        lambda engine, name: engine.remove_container(name),
        dict.fromkeys((CREATED, RUNNING, FROZEN, EXITED), ABSENT),
    ),
}


@pytest.mark.parametrize("verb", list(VERBS))
@pytest.mark.parametrize("before", list(ENDS))
def test_call_leads_to_the_expected_state_from_each_state(
    engine: Engine, request_: ContainerRequest, verb: str, before: ContainerState
) -> None:
    engine.create(request_)
    for reach in ENDS[before]:
        reach(engine, request_.name)
    assert state(engine, request_.name) == before
    act, after = VERBS[verb]
    act(engine, request_.name)
    # Docker receives two events for a pause. The second one, from containerd, may arrive after the unpause; the state
    # is "paused" until containerd's event for the unpause arrives.
    eventually(lambda: state(engine, request_.name) == after[before])


def test_container_has_an_address_while_it_runs_and_publishes_no_port(
    engine: Engine, request_: ContainerRequest
) -> None:
    name = started(engine, request_)
    engine.pause(name)
    assert ip_address(engine.observe(name).address)
    engine.stop(name, 1)
    assert engine.observe(name).address == ""
    engine.start(name)
    found = engine.observe(name)
    assert ip_address(found.address)
    assert not found.is_published
    [listed] = engine.list_containers(request_.labels[INSTALLATION_LABEL])
    assert not listed.is_published


def test_log_is_kept_until_the_container_is_gone(engine: Engine, request_: ContainerRequest) -> None:
    name = request_.name
    engine.create(request_)
    assert not engine.read_log(name).lines
    started(engine, request_)
    eventually(lambda: engine.read_log(name).lines)
    engine.stop(name, 1)
    before = len(engine.read_log(name).lines)
    engine.start(name)
    eventually(lambda: len(engine.read_log(name).lines) > before)
    log = engine.read_log(name)
    assert not log.is_cut
    times = [line.at for line in log.lines]
    assert times == sorted(times)
    assert all(re.fullmatch(r"\d{4}(-\d\d){2}T\d\d(:\d\d){2}\.\d{9}Z", at) for at in times)
    assert not [line for line in log.lines if line.is_partial or "\n" in line.text]
    engine.remove_container(name)
    assert not engine.read_log(name).lines


def test_each_container_of_a_name_has_its_own_id(engine: Engine, request_: ContainerRequest) -> None:
    name = started(engine, request_)
    first = engine.observe(name).container_id
    engine.stop(name, 1)
    assert engine.observe(name).container_id == first != ""
    engine.remove_container(name)
    assert engine.observe(name).container_id == ""
    engine.create(request_)
    assert engine.observe(name).container_id not in ("", first)


def test_volume_outlives_a_removed_container(engine: Engine, request_: ContainerRequest, installation: str) -> None:
    name = started(engine, request_)
    engine.remove_container(name)
    left = engine.observe(name)
    assert (left.state, left.has_volume) == (ContainerState.ABSENT, True)
    assert engine.list_volumes(installation) == [name]


def test_missing_image_is_reported(engine: Engine, request_: ContainerRequest, installation: str) -> None:
    missing = replace(request_, image=MISSING_IMAGE)
    with pytest.raises(ImageMissing):
        engine.create(missing)
    # The volume exists already: a caller that gives up removes it.
    assert engine.observe(missing.name).has_volume
    engine.remove(missing.name)
    assert engine.list_volumes(installation) == []
    with pytest.raises(ImageMissing):
        engine.pull(MISSING_IMAGE)
    assert engine.find_image(MISSING_IMAGE) is None


def test_image_has_the_id_of_its_containers(engine: Engine, request_: ContainerRequest, installation: str) -> None:
    engine.create(request_)
    [listed] = engine.list_containers(installation)
    assert listed.image == engine.find_image(TINY_IMAGE)


def test_foreign_container_of_that_name_is_replaced(engine: Engine, request_: ContainerRequest) -> None:
    name = started(engine, replace(request_, labels=request_.labels | {SANDBOX_LABEL: "another"}))
    engine.create(request_)
    found = engine.observe(name)
    assert (found.state, found.labels[SANDBOX_LABEL]) == (CREATED, request_.labels[SANDBOX_LABEL])


def test_container_without_an_owner_is_adopted(engine: Engine, request_: ContainerRequest) -> None:
    owner = "agent-workspace.owner"
    name = started(engine, replace(request_, labels=request_.labels | {owner: ""}))
    engine.create(replace(request_, labels=request_.labels | {owner: "alice"}))
    assert state(engine, name) == RUNNING


def test_container_with_additional_labels_is_adopted(engine: Engine, request_: ContainerRequest) -> None:
    name = started(engine, replace(request_, labels=request_.labels | {"agent-workspace.more": "1"}))
    engine.create(request_)
    assert state(engine, name) == RUNNING


def test_list_contains_its_own_installation_only(
    engine: Engine, another: Engine, request_: ContainerRequest, installation: str
) -> None:
    name = started(engine, request_)
    assert [(item.name, item.state) for item in engine.list_containers(installation)] == [(name, RUNNING)]
    assert another.list_containers("another") == []
