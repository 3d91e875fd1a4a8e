"""Lost, cut and error responses of an engine on a real socket, and the errors that the client raises for them."""

import threading
from collections.abc import Callable, Iterator
from time import monotonic

import pytest

from tests.worker.engine.scripted_engine import (
    STREAM,
    Answer,
    ScriptedEngine,
    chunk,
    error,
    running_scripted_engine,
    whole,
)
from worker import lease_renewer
from worker.engine import docker_engine as engine_module
from worker.engine.docker_engine import DockerEngine
from worker.engine.protocol import ContainerRequest, EngineFailing, EngineRefused, EngineUnavailable, ImageMissing
from worker.settings import WorkerSettings

PULL, EVENTS = "/images/create", "/events"
LINE = b'{"status":"Pulling"}\r\n'
EVENT = b'{"Action":"die","Actor":{"Attributes":{"name":"aw-1"}}}\n'
# Less than the timeouts that a test does not shorten.
SOON_SECONDS = 4.0
NO_RESPONSE = Answer(holds=True)
REFUSED = 400
INFO = b'{"ID":"engine","DockerRootDir":"/data"}'
VOLUME = whole(b'{"Labels":{"agent-workspace.installation":"test"}}', 201)


@pytest.fixture
def scripted() -> Iterator[ScriptedEngine]:
    with running_scripted_engine() as scripted:
        yield scripted


@pytest.fixture
def engine(scripted: ScriptedEngine) -> Iterator[DockerEngine]:
    engine = DockerEngine(scripted.host)
    yield engine
    engine.close()


def raised(call: Callable[[], object]) -> tuple[type[BaseException], float]:
    """Return the type of the call's error, and the seconds until it was raised."""
    began = monotonic()
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is the question
        call()
    return caught.type, monotonic() - began


@pytest.mark.parametrize("response", [NO_RESPONSE, Answer(STREAM + chunk(LINE), holds=True)])
def test_pull_with_a_lost_response_ends(
    scripted: ScriptedEngine, engine: DockerEngine, response: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "PULL_SECONDS", 0.2)
    scripted.responses[PULL] = response
    error_type, seconds = raised(lambda: engine.pull("a:1"))
    assert error_type is EngineUnavailable
    assert seconds < SOON_SECONDS


@pytest.mark.parametrize(
    "content",
    [
        STREAM[:20],
        STREAM,
        STREAM + chunk(LINE),
        STREAM + chunk(LINE) + b"15",
        STREAM + chunk(LINE)[:-5],
        STREAM + chunk(LINE[:9]),
        STREAM + chunk(LINE[:9]) + b"0\r\n\r\n",
    ],
)
def test_pull_with_a_cut_response_may_be_retried(
    scripted: ScriptedEngine, engine: DockerEngine, content: bytes
) -> None:
    scripted.responses[PULL] = Answer(content)
    assert raised(lambda: engine.pull("a:1"))[0] is EngineUnavailable


@pytest.mark.parametrize(
    ("response", "kind"),
    [
        (error(500, "no space left on device"), EngineFailing),
        (error(500, "dial tcp 127.0.0.1:1: connection refused"), EngineFailing),
        (error(503, "starting"), EngineFailing),
        (error(429, "too many requests"), EngineFailing),
        (error(500, "dial tcp: lookup registry: no such host"), ImageMissing),
        (error(500, "pull access denied for a"), ImageMissing),
        (error(404, "manifest unknown"), ImageMissing),
        (error(403, "denied"), ImageMissing),
        (error(400, "invalid reference format"), ImageMissing),
        (Answer(STREAM + chunk(b'{"error":"denied"}\r\n') + b"0\r\n\r\n"), ImageMissing),
    ],
)
def test_pull_is_final_only_if_no_later_one_can_succeed(
    scripted: ScriptedEngine, engine: DockerEngine, response: Answer, kind: type[Exception]
) -> None:
    scripted.responses |= {PULL: response, "/json": whole(b'{"Id":"1"}')}
    assert raised(lambda: engine.pull("a:1"))[0] is kind


def test_quiet_stream_of_events_ends(
    scripted: ScriptedEngine, engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "FOLLOW_SECONDS", 0.2)
    scripted.responses[EVENTS] = Answer(STREAM + chunk(EVENT), holds=True)
    for times in (1, 2):
        began = monotonic()
        assert list(engine.follow("test")) == ["aw-1"]
        assert monotonic() - began < SOON_SECONDS
        assert scripted.requested[EVENTS] == times


def test_event_stream_without_a_response_means_engine_unavailable(
    scripted: ScriptedEngine, engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "FOLLOW_SECONDS", 0.2)
    scripted.responses[EVENTS] = NO_RESPONSE
    assert raised(lambda: engine.follow("test"))[0] is EngineUnavailable


def test_cut_event_means_engine_unavailable(scripted: ScriptedEngine, engine: DockerEngine) -> None:
    scripted.responses[EVENTS] = Answer(STREAM + chunk(EVENT[:9]) + b"0\r\n\r\n")
    assert raised(lambda: list(engine.follow("test")))[0] is EngineUnavailable


@pytest.mark.parametrize("status", [408, 429, 500, 503])
def test_temporary_error_means_engine_failing(scripted: ScriptedEngine, engine: DockerEngine, status: int) -> None:
    scripted.responses["/json"] = error(status, "later")
    assert raised(lambda: engine.observe("aw-1"))[0] is EngineFailing


def test_rejected_request_means_engine_refused(scripted: ScriptedEngine, engine: DockerEngine) -> None:
    scripted.responses["/json"] = error(REFUSED, "never")
    assert raised(lambda: engine.observe("aw-1"))[0] is EngineRefused


def test_lost_response_during_a_heartbeat_loses_no_node(
    scripted: ScriptedEngine, engine: DockerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = WorkerSettings().node_lost_seconds
    assert WorkerSettings().heartbeat_seconds + engine_module.READ_SECONDS < lost
    assert WorkerSettings().heartbeat_seconds + engine_module.LIST_SECONDS < lost
    monkeypatch.setattr(engine_module, "READ_SECONDS", 0.2)
    scripted.responses["/info"] = NO_RESPONSE
    error_type, seconds = raised(engine.read_id)
    assert error_type is EngineUnavailable
    assert seconds < SOON_SECONDS


def test_container_that_is_still_being_created_is_waited_for(
    scripted: ScriptedEngine, engine: DockerEngine, request_: ContainerRequest
) -> None:
    """The container's name is taken, but the container can't be inspected yet."""
    image = whole(b'{"Id":"1","Config":{"Labels":null}}')
    scripted.responses |= {f"/images/{request_.image}/json": image, "/volumes/create": VOLUME}
    scripted.responses["/containers/create"] = error(409, "conflict")
    with pytest.raises(EngineUnavailable, match="still being created"):
        engine.create(request_)


def test_clients_are_reused(scripted: ScriptedEngine, engine: DockerEngine) -> None:
    scripted.responses["/json"] = whole(b'{"Id":"1"}')
    for _ in range(3):
        assert engine.find_image("a:1") == "1"
    assert scripted.requested["/version"] == 1
    assert len(engine._clients._idle) == 1


class Stop(Exception):
    """Error of the check."""


def test_abandoned_create_creates_no_container(
    scripted: ScriptedEngine, engine: DockerEngine, request_: ContainerRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sandbox may be deleted by the time that the creation of its volume completes."""
    monkeypatch.setattr(lease_renewer, "WATCH_SECONDS", 0.01)
    ended = threading.Event()

    def create() -> None:
        try:
            engine.create(request_)
        finally:
            ended.set()

    def stop() -> None:
        raise Stop

    scripted.go_on.clear()
    scripted.responses |= {"/volumes/create": VOLUME, "/containers/create": whole(b'{"Id":"1"}', 201)}
    with pytest.raises(Stop):
        lease_renewer.run_watched(create, stop)
    scripted.go_on.set()
    assert ended.wait(SOON_SECONDS)
    assert scripted.requested["/volumes/create"] == 1
    assert scripted.requested["/containers/create"] == 0


@pytest.mark.parametrize("words", ["client version 1.41 is too old", "client version 1.41 is too new"])
def test_version_of_a_replaced_engine_is_requested(scripted: ScriptedEngine, engine: DockerEngine, words: str) -> None:
    """The engine is upgraded or downgraded while the worker runs."""
    scripted.responses |= {"/v1.41/info": whole(INFO), "/v1.41/events": whole(b"")}
    assert engine.read_id() == "engine /data"
    assert list(engine.follow("test")) == []
    scripted.responses = {
        "/version": whole(b'{"ApiVersion":"1.45"}'),
        **{f"/v1.45/{path}": response for path, response in {"info": whole(INFO), "events": whole(EVENT)}.items()},
        "/info": error(REFUSED, words),
    }
    with pytest.raises(EngineFailing, match="client version"):
        engine.read_id()
    assert engine.read_id() == "engine /data"
    assert list(engine.follow("test")) == ["aw-1"]
