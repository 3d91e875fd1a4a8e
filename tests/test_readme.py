"""The README, the changelog and the decisions, held against the code: a table that nobody checks is soon wrong."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic_core import PydanticUndefined
from pydantic_settings import BaseSettings

from api.app import create_app
from api.realtime.change_streams import Streams
from api.realtime.completion_waiter import CompletionWaiter
from api.request.context import Context
from shared.crypto import Vault
from shared.db.database import Database
from shared.settings import Settings
from shared.states import Reason, Stage, Status
from tests.doubles import RecordingPublisher
from tests.services.directories import REPOSITORY
from worker.settings import WorkerSettings

README = (REPOSITORY / "README.md").read_text()
DOCUMENTS = [REPOSITORY / "README.md", REPOSITORY / "CHANGELOG.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]

VARIABLE_ROW = re.compile(r"^\| `(AW_[A-Z_]+)` \|(.*?)\| .+ \|$", re.MULTILINE)
OPERATION_ROW = re.compile(r"^\| `([A-Z]+) (/\S*)` \|", re.MULTILINE)
VARIABLE = re.compile(r"\bAW_[A-Z_]*[A-Z]\b")
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED_PATH = re.compile(r"`((?:api|deploy|docs|shared|tests|worker|\.ci)/[\w./-]*)`")
TREE_ROW = re.compile(r"^([\w./]+) {2,}\S", re.MULTILINE)
TARGET = re.compile(r"(?:`|^)make\s+([a-z]+)", re.MULTILINE)
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)

FIELDS = {
    f"AW_{name.upper()}": field for kind in (Settings, WorkerSettings) for name, field in kind.model_fields.items()
}


def test_every_setting_is_documented_and_no_other() -> None:
    documented = [name for name, _ in VARIABLE_ROW.findall(README)]
    assert len(documented) == len(set(documented))
    assert set(documented) == set(FIELDS) | variables_of_scripts()


def variables_of_scripts() -> set[str]:
    files = [REPOSITORY / "Makefile", REPOSITORY / "Procfile", *(REPOSITORY / "deploy").rglob("*")]
    texts = [path.read_text() for path in files if path.is_file() and path.suffix != ".pyc"]
    return {name for text in texts for name in VARIABLE.findall(text)}


@pytest.mark.parametrize("settings", [Settings, WorkerSettings])
def test_defaults_are_those_of_the_code(settings: type[BaseSettings]) -> None:
    documented = dict(VARIABLE_ROW.findall(README))
    for name, field in settings.model_fields.items():
        if field.default is not PydanticUndefined:
            assert documented[f"AW_{name.upper()}"].strip() == shown(field.default), name


def shown(default: object) -> str:
    text = str(int(default)) if isinstance(default, float) and default.is_integer() else str(default)
    return f"`{text}`" if text else ""


def test_every_operation_is_in_the_table_and_no_other(
    vault: Vault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # there is no var/env here
    database = Database(f"sqlite:///{tmp_path / 'unused.db'}")
    app = create_app(
        Context(Settings(), database, vault, RecordingPublisher(), CompletionWaiter(database), Streams(database))
    )
    paths = app.openapi()["paths"]
    operations = {(method.upper(), path) for path, methods in paths.items() for method in methods}
    assert set(OPERATION_ROW.findall(README)) == operations


@pytest.mark.parametrize("names", [Reason, Stage, Status])
def test_every_state_and_reason_is_named(names: type[Reason | Stage | Status]) -> None:
    assert [name.value for name in names if not re.search(rf"\b{name.value}\b", README)] == []


def test_every_make_target_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    assert set(TARGET.findall(README)) <= targets


def test_relative_links_of_documents_lead_somewhere() -> None:
    assert offending(dead_links) == {}


def test_files_that_documents_name_exist() -> None:
    assert offending(missing_files) == {}


def test_lines_of_documents_are_short() -> None:
    assert offending(long_lines) == {}


@pytest.mark.parametrize(
    ("text", "find"),
    [
        ("[there](nowhere.md)", "dead_links"),
        ("`shared/nothing.py`", "missing_files"),
        ("`nowhere/nothing.py`", "missing_files"),
        ("x" * 121, "long_lines"),
    ],
)
def test_what_is_wrong_with_a_document_is_found(text: str, find: str, tmp_path: Path) -> None:
    document = tmp_path / "document.md"
    document.write_text(f"# A document\n\n[here](document.md#a-document) and `shared/cli/app.py`\n{text}\n")
    found = {check.__name__: check(document) for check in (dead_links, missing_files, long_lines)}
    assert {name for name, wrong in found.items() if wrong} == {find}


def offending(find: Callable[[Path], list[str]]) -> dict[str, list[str]]:
    """What is found wrong, by the document's name."""
    found = {str(document.relative_to(REPOSITORY)): find(document) for document in DOCUMENTS}
    return {name: wrong for name, wrong in found.items() if wrong}


def dead_links(document: Path) -> list[str]:
    links = [link for link in LINK.findall(document.read_text()) if "://" not in link]
    return [link for link in links if not leads_somewhere(document, link)]


def missing_files(document: Path) -> list[str]:
    named = [*NAMED_PATH.findall(document.read_text()), *re.findall(r"`(\w+/\w+\.py)`", document.read_text())]
    return [name for name in named if not (REPOSITORY / name).exists()]


def long_lines(document: Path) -> list[str]:
    prose = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    return [line for line in prose.splitlines() if len(line) > 120 and not line.startswith(("|", "!["))]


def leads_somewhere(document: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (document.parent / path).resolve() if path else document
    return target.exists() and (not anchor or anchor in map(anchor_of, HEADING.findall(target.read_text())))


def anchor_of(heading: str) -> str:
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_tree_is_the_repositorys() -> None:
    tree = README.split("## Where things live", 1)[1].split("```")[1]
    named = {name.rstrip("/") for name in TREE_ROW.findall(tree)} - {"var"}  # made at the first run
    assert [name for name in named if not (REPOSITORY / name).exists()] == []
    parts = {path.parent.name for path in REPOSITORY.glob("*/__init__.py")}
    assert parts <= named
