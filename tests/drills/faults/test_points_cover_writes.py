"""Every external write has a point before and after it. The tests find the writes in the source."""

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from ipaddress import IPv4Network
from types import ModuleType
from typing import Any

import httpx
import pytest
from docker import APIClient
from sqlalchemy import event
from sqlmodel import select

from shared.db.database import Database
from shared.models import User
from shared.observability import failpoints
from shared.queue.broker import Publisher
from shared.queue.jobs import StartSandbox
from tests.drills.faults.api_writes import all_write_kinds
from tests.drills.faults.observer import Observer
from tests.drills.faults.operations import OPERATIONS
from tests.drills.faults.recordings import Recordings
from tests.fakes.agent_server import FakeAgentServer
from tests.services.directories import REPOSITORY
from worker.agent_server.client import AgentServer
from worker.engine import disk_images, docker_client, docker_engine
from worker.network.firewall import FilteredFirewall, FirewallError, LocalFirewall
from worker.network.rules import Allowed, Bridge, RulesChange

# The modules that import docker.
DOCKER_MODULES = (docker_engine, docker_client)
POINTED = {"around"}
NAMED = re.compile(r'failpoints\.(?:before|around)\("([\w.]+)"\)')
# About 300 points are reached, some of them only with certain timing.
FEWEST_POINTS = 280
CONVERSATION = "0" * 32
ARGUMENTS: dict[str, Any] = {
    "body": {"conversation_id": CONVERSATION, "agent_settings": {"llm": {"model": "m"}}},
    "path": "/file",
    "llm": {"model": "m"},
}
OF_TYPE: dict[Any, Any] = {str: CONVERSATION, bytes: b"", float: 1.0, dict[str, Any]: {}}


class ReachedPoints:
    """The points reached so far."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def last(self) -> str:
        return self.names[-1] if self.names else ""


@pytest.fixture
def reached(monkeypatch: pytest.MonkeyPatch) -> ReachedPoints:
    points = ReachedPoints()
    monkeypatch.setattr(failpoints, "observer", Observer(points.names.append))
    failpoints.begin("test")
    return points


# --- the engine: by reading the only files that import docker ---------------------------------------------------------


def writers(client: type[Any]) -> set[str]:
    """The methods of Docker's client that write, directly or by another method."""
    sources = {name: inspect.getsource(method) for name, method in inspect.getmembers(client, inspect.isfunction)}
    found = {name for name, text in sources.items() if re.search(r"self\._(post|put|delete)(_json)?\(", text)}
    found -= {"_post", "_put", "_delete", "_post_json"}
    while more := {
        name for name, text in sources.items() if name not in found and any(f"self.{one}(" in text for one in found)
    }:
        found |= more
    return found


def calls(tree: ast.AST, names: set[str]) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names
    ]


def pointed_blocks(tree: ast.AST) -> Iterator[ast.AST]:
    """The blocks with a point before and after them: `with failpoints.around(…)`, `@failpoints.around(…)`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.With) and any(calls(item.context_expr, POINTED) for item in node.items):
            yield ast.Module(node.body, [])
        if isinstance(node, ast.FunctionDef) and any(calls(item, POINTED) for item in node.decorator_list):
            yield ast.Module(node.body, [])


def writes_of_engine(source: str) -> tuple[list[ast.Call], list[list[ast.Call]]]:
    """The calls of writing methods of Docker's client: all of them, and those in each block with points.

    Some of the product's own methods have the same names. A call on `self` is one of these.
    """
    tree, names = ast.parse(source), writers(APIClient)

    def docker_calls(part: ast.AST) -> list[ast.Call]:
        found = calls(part, names)
        return [call for call in found if ast.unparse(call.func).rpartition(".")[0] not in ("self", "_Body")]

    return docker_calls(tree), [docker_calls(block) for block in pointed_blocks(tree)]


@pytest.mark.parametrize("module", DOCKER_MODULES)
def test_each_write_to_the_engine_has_points_of_its_own(module: ModuleType) -> None:
    source = inspect.getsource(module)
    written, pointed = writes_of_engine(source)
    assert len(written) == len(NAMED.findall(source))
    lines = sorted(call.lineno for call in written)
    assert sorted(call.lineno for block in pointed for call in block) == lines
    assert [len(block) for block in pointed] == [1] * len(lines)


def test_write_without_a_point_is_found() -> None:
    source = "def stop(self, name):\n    self._api().stop(name)\n"
    assert [len(part) for part in writes_of_engine(source)] == [1, 0]
    assert [len(block) for block in writes_of_engine(f"@failpoints.around('x')\n{source}")[1]] == [1]


# --- disks and the firewall -------------------------------------------------------------------------------------------


# Calls of programs for disks without points of their own.
UNPOINTED = {
    "_run('losetup', '--find')",  # reads
    "_run('losetup', *columns, '--associated', str(self.path(name)), seconds=SHORT_SECONDS)",  # reads
    "_run('losetup', '--detach', device, seconds=SHORT_SECONDS)",  # the caller has points around the whole of `remove`
    "_run('umount', '--lazy', str(folder), seconds=SHORT_SECONDS)",  # as above
}


def test_each_change_of_disks_has_points() -> None:
    source = ast.parse(inspect.getsource(disk_images))
    pointed = {call.lineno for block in pointed_blocks(source) for call in calls_of_programs(block)}
    assert len(pointed) == 3
    assert {ast.unparse(call) for call in calls_of_programs(source) if call.lineno not in pointed} == UNPOINTED


def calls_of_programs(tree: ast.AST) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == "_run"]


@pytest.mark.parametrize("name", ["write", "change", "disconnect", "remove"])
@pytest.mark.parametrize("kind", [LocalFirewall, FilteredFirewall])
def test_each_write_to_the_firewall_has_points(
    kind: type[Any], name: str, reached: ReachedPoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def note(*arguments: object, **_options: object) -> str | None:
        if "list" not in arguments:
            seen.append(reached.last())
        return '{"nftables": []}' if "tables" in arguments else None

    monkeypatch.setattr(kind, "_run_program" if kind is LocalFirewall else "_request", note)
    found = kind(Bridge("br-aw", IPv4Network("10.0.0.0/24")) if kind is LocalFirewall else "unix:///filter")
    one = Allowed(sandboxes=frozenset({"10.0.0.2"}))
    models = ["10.0.0.2 . 10.0.0.1 . 3003"]
    arguments: dict[str, list[Any]] = {
        "write": [one],
        "change": [RulesChange(one)],
        "disconnect": [models],
        "remove": [],
    }
    with suppress(FirewallError):  # `write` finds no rules to read back
        getattr(found, name)(*arguments[name])
    assert seen == [f"test/1/firewall.{name}.before"]
    assert reached.last() == f"test/1/firewall.{name}.after"


# --- agent servers: by calling every method of their client ----------------------------------------------------------

METHODS = [name for name, method in inspect.getmembers(AgentServer, inspect.isfunction) if not name.startswith("_")]


@pytest.mark.parametrize("name", METHODS)
def test_each_write_to_an_agent_server_has_points(name: str, reached: ReachedPoints) -> None:
    seen = call(name, reached)
    assert seen
    written = [(verb, point) for verb, point in seen if verb != "GET"]
    assert all(re.fullmatch(r"test/\d+/agent_server\.\w+\.before", point) for _, point in written), seen
    assert len(reached.names) == 2 * len(written)
    assert all(name.endswith(".after") for name in reached.names[1::2])


def call(name: str, reached: ReachedPoints) -> list[tuple[str, str]]:
    """Call a method of the client; return its requests, each with the last point before it."""
    fake = FakeAgentServer("key")
    fake.add(CONVERSATION, title="t")
    seen: list[tuple[str, str]] = []

    def respond(request: httpx.Request) -> httpx.Response:
        seen.append((request.method, reached.last()))
        return fake.respond(request)

    with httpx.Client(transport=httpx.MockTransport(respond)) as client:
        method: Callable[..., Any] = getattr(AgentServer("http://agent", "key", client), name)
        kinds = {key: kind for key, kind in inspect.get_annotations(method).items() if key != "return"}
        made = method(**{key: ARGUMENTS.get(key, OF_TYPE.get(kind)) for key, kind in kinds.items()})
        if isinstance(made, Iterator):
            list(made)
    return seen


# --- the database and the broker --------------------------------------------------------------------------------------


def test_each_commit_has_points(database: Database, reached: ReachedPoints) -> None:
    seen: list[str] = []
    event.listen(database.engine, "commit", lambda _connection: seen.append(reached.last()))
    with database.transaction() as session:
        session.exec(select(User))
    with database.reading() as session:
        session.exec(select(User))
    assert (seen, reached.last()) == (["test/1/database.commit.before"], "test/1/database.commit.after")


def test_each_message_has_points(reached: ReachedPoints) -> None:
    seen: list[str] = []

    class App:
        def send_task(self, *_arguments: object, **_options: object) -> None:
            seen.append(reached.last())

    Publisher(App()).publish(StartSandbox("s", "n"))  # type: ignore[arg-type]
    assert (seen, reached.last()) == (["test/1/broker.publish.before"], "test/1/broker.publish.after")


# `agent-workspace migrate` creates the tables and their first rows before any other process runs.
MIGRATION = {"shared/cli/local/installation.py", "shared/db/migrations.py"}


@pytest.mark.parametrize(
    ("pattern", "home"),
    [
        (
            r"\b(Session|sessionmaker|create_engine)\(",
            {"shared/db/database.py", "shared/db/unfinished_restore.py"} | MIGRATION,
        ),
        (r"\.commit\(", {"shared/cli/local/installation.py"}),
        (r"\.(send_task|apply_async|delay)\(", {"shared/queue/broker.py"}),
        (r"\bhttpx\.Client\(", {"worker/agent_server/transport.py", "shared/cli/remote/service.py"}),
        (
            r"\bhttpx\.AsyncClient\(",
            {"api/agent_server/client.py", "api/git/http_client.py", "api/web/admin/flower.py"},
        ),
    ],
)
def test_only_listed_files_write(pattern: str, home: set[str]) -> None:
    files = [file for part in ("api", "worker", "shared") for file in (REPOSITORY / part).rglob("*.py")]
    assert {str(file.relative_to(REPOSITORY)) for file in files if re.search(pattern, file.read_text())} == home


# --- and a process is killed at each of them --------------------------------------------------------------------------


# Points that no operation reaches, each with the reason.
UNPASSED = {
    "agent_server.skills": "a POST that reads the project's skills",
    "agent_server.hooks": "a POST that reads the project's hooks",
    "agent_server.await_messages": "a POST that changes nothing, and waits behind those before it",
    "firewall.remove": "with AW_NETWORK_ISOLATION=off, when a worker starts; each start repeats it",
    "agent_server.send_frame": "the tiny agent server has no websockets; a frame has no response and is never repeated",
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("stores", ["sqlite"], indirect=True)
def test_each_write_is_in_some_operation(recordings: Recordings, reached: ReachedPoints) -> None:
    for name in METHODS:
        call(name, reached)
    files = [file for part in ("api", "worker", "shared") for file in (REPOSITORY / part).rglob("*.py")]
    named = {name for file in files for name in NAMED.findall(file.read_text())}
    known = named | {kind(name) for name in reached.names} | all_write_kinds(REPOSITORY / "api")
    passed = {each.point for reached in recordings.hits(list(OPERATIONS)) for each in reached}
    engine = {name for name in known if name.startswith("engine.")}
    assert len(engine) == sum(len(writes_of_engine(inspect.getsource(one))[0]) for one in DOCKER_MODULES)
    assert known - {kind(point) for point in passed} == set(UNPASSED)
    assert len(passed) >= FEWEST_POINTS


def kind(point: str) -> str:
    """The write that a point belongs to."""
    return point.rsplit("/", 1)[-1].rsplit(".", 1)[0]
