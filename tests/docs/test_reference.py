"""The tables of the documentation, held against the code: settings, operations, states, metrics."""

import re
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from api.app import create_app
from api.realtime.change_streams import Streams
from api.realtime.completion_waiter import CompletionWaiter
from api.request.context import Context
from api.routes.ops.store_gauges import read_gauges
from shared.crypto import Vault
from shared.db.database import Database
from shared.observability.metrics import collector
from shared.settings import Settings
from shared.states import NodeStatus, Stage, Status
from tests.docs.documents import DOCS, PAGES, README, read_page, read_section
from tests.doubles import RecordingPublisher
from tests.services.directories import REPOSITORY
from worker.settings import WorkerSettings

VARIABLE_ROW = re.compile(r"^\| `(AW_[A-Z_]+)` \|(.*?)\| .+ \|$", re.MULTILINE)
OPERATION_ROW = re.compile(r"^\| `([A-Z]+) (/\S*)` \|", re.MULTILINE)
VARIABLE = re.compile(r"\bAW_[A-Z_]*[A-Z]\b")
METRIC = re.compile(r"\bagent_workspace_[a-z_]+\b")
# What Prometheus adds to the name of a counter or a histogram.
SUFFIX = re.compile(r"_(?:total|bucket|sum|count)$")

FIELDS = {
    f"AW_{name.upper()}": field for kind in (Settings, WorkerSettings) for name, field in kind.model_fields.items()
}


def test_documented_settings_match_the_code() -> None:
    documented = [name for name, _ in VARIABLE_ROW.findall(read_page("reference/configuration.md"))]
    assert len(documented) == len(set(documented))
    assert set(documented) == set(FIELDS) | variables_of_scripts()


def variables_of_scripts() -> set[str]:
    files = [REPOSITORY / "Makefile", REPOSITORY / "Procfile", *(REPOSITORY / "deploy").rglob("*")]
    texts = [path.read_text() for path in files if path.is_file() and path.suffix != ".pyc"]
    return {name for text in texts for name in VARIABLE.findall(text)}


@pytest.mark.parametrize("settings", [Settings, WorkerSettings])
def test_documented_defaults_match_the_code(settings: type[BaseSettings]) -> None:
    documented = dict(VARIABLE_ROW.findall(read_page("reference/configuration.md")))
    for name, field in settings.model_fields.items():
        if field.default is not PydanticUndefined:
            assert documented[f"AW_{name.upper()}"].strip() == shown(field.default), name


def shown(default: object) -> str:
    if default is None:
        return ""
    text = str(int(default)) if isinstance(default, float) and default.is_integer() else str(default)
    return f"`{text}`" if text else ""


@pytest.mark.parametrize("page", [README, DOCS / "start" / "install.md"])
def test_required_disk_includes_what_a_node_keeps_free(page: Path) -> None:
    [found] = re.findall(r"about (\d+) GB of free", page.read_text())
    [used] = re.findall(r"(\d) GB(?: for the service|, most of it)", page.read_text())
    assert int(found) * 10**9 > int(used) * 10**9 + WorkerSettings.model_fields["min_free_disk_bytes"].default


def test_settings_that_pages_name_are_documented() -> None:
    documented = {name for name, _ in VARIABLE_ROW.findall(read_page("reference/configuration.md"))}
    named = {(page.name, name) for page in PAGES for name in VARIABLE.findall(page.read_text())}
    assert [(page, name) for page, name in sorted(named) if name not in documented] == []


def test_documented_operations_match_the_code(vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # there is no var/env here
    database = Database(f"sqlite:///{tmp_path / 'unused.db'}")
    context = Context(Settings(), database, vault, RecordingPublisher(), CompletionWaiter(database), Streams(database))
    app = create_app(context)
    paths = app.openapi()["paths"]
    operations = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert set(OPERATION_ROW.findall(read_page("reference/api.md"))) == operations


@pytest.mark.parametrize(
    ("page", "heading", "names"),
    [
        ("concepts/sandboxes.md", "States", Status),
        ("concepts/conversations.md", "Start", Stage),
        ("operate/nodes.md", "nodes list", NodeStatus),
    ],
)
def test_every_state_has_a_row(page: str, heading: str, names: type[Status | Stage | NodeStatus]) -> None:
    rows = re.findall(r"^\| ([^|]+) \|", read_section(read_page(page), heading), re.MULTILINE)
    assert [name.value for name in names if not re.search(rf"\b{name.value}\b", "\n".join(rows))] == []


def test_documented_metrics_match_the_code(database: Database, tmp_path: Path) -> None:
    counted = collector(Settings(var_dir=tmp_path)).collect()
    metrics = {metric.name for metric in [*counted, *read_gauges(database)]}
    documented = {SUFFIX.sub("", name) for name in METRIC.findall(read_page("operate/monitoring.md"))}
    assert documented == metrics
    named = {SUFFIX.sub("", name) for page in PAGES for name in METRIC.findall(page.read_text())}
    assert named == metrics
