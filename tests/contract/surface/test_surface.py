"""Our interface beside the table of V1's: all of it is there, with the same types, but for what is listed."""

import copy
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tests.contract.surface import facts
from tests.contract.surface.comparison import compare
from tests.contract.surface.description import Document, describe

LACKING = Path(__file__).with_name("lacking.toml")

Change = Callable[[Document], Any]


def lacking() -> set[str]:
    """All that is known not to be there, or to be different."""
    return {where for entries in tomllib.loads(LACKING.read_text()).values() for where in entries}


def test_nothing_of_v1_is_missing_but_what_is_listed(client: TestClient) -> None:
    assert isinstance(client.app, FastAPI)
    findings = compare(describe(client.app.openapi()), facts.load())
    assert {where: what for where, what in findings.items() if where not in lacking()} == {}


def test_what_is_listed_is_still_missing(client: TestClient) -> None:
    assert isinstance(client.app, FastAPI)
    findings = compare(describe(client.app.openapi()), facts.load())
    assert lacking() - findings.keys() == set(), "strike these from lacking.toml"


ITEM: Document = {
    "properties": {
        "id": {"type": "string"},
        "at": {"type": "string", "format": "date-time"},
        "status": {"enum": ["ON", "OFF"]},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "parts": {"type": "array", "items": {"type": "integer"}},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["id"],
}
THEIRS: Document = {
    "paths": {
        "/things/{id}": {
            "put": {
                "parameters": [
                    {"in": "path", "name": "id", "required": True, "schema": {"type": "string"}},
                    {"in": "query", "name": "limit", "schema": {"type": "integer"}},
                    {"in": "header", "name": "X-Key", "schema": {"type": "string"}},
                ],
                "requestBody": {"content": {"application/json": {"schema": {"$ref": "#/c/Item"}}}},
                "responses": {"200": {"content": {"application/json": {"schema": {"$ref": "#/c/Item"}}}}},
            }
        }
    },
    "components": {"schemas": {"Item": ITEM}},
}


def test_the_same_fits() -> None:
    assert compare(describe(THEIRS), describe(THEIRS)) == {}


def _operation(document: Document) -> Document:
    found: Document = document["paths"]["/things/{id}"]["put"]
    return found


def _field(document: Document, name: str, schema: Document) -> None:
    document["components"]["schemas"]["Item"]["properties"][name] = schema


MORE: dict[str, Change] = {
    "a placeholder's name": lambda ours: (
        ours["paths"].update({"/things/{name}": ours["paths"].pop("/things/{id}")}),
        ours["paths"]["/things/{name}"]["put"]["parameters"][0].update(name="name"),
    ),
    "an operation": lambda ours: ours["paths"].update({"/others": {}}),
    "an optional parameter": lambda ours: _operation(ours)["parameters"].append(
        {"in": "query", "name": "wait", "schema": {"type": "integer"}}
    ),
    "a field": lambda ours: _field(ours, "ours", {"type": "string"}),
}


@pytest.mark.parametrize("what", MORE)
def test_more_is_all_right(what: str) -> None:
    ours = copy.deepcopy(THEIRS)
    MORE[what](ours)
    assert compare(describe(ours), describe(THEIRS)) == {}


PUT = "PUT /things/{id}"
LESS: dict[str, tuple[Change, list[str]]] = {
    "a path": (lambda ours: ours["paths"].clear(), [PUT]),
    "a method": (lambda ours: ours["paths"]["/things/{id}"].clear(), [PUT]),
    "a parameter": (lambda ours: _operation(ours)["parameters"].pop(1), [f"{PUT} query limit"]),
    "a parameter's place": (
        lambda ours: _operation(ours)["parameters"][1].update({"in": "header"}),
        [f"{PUT} query limit"],
    ),
    "a parameter's type": (
        lambda ours: _operation(ours)["parameters"][1].update(schema={"type": "boolean"}),
        [f"{PUT} query limit"],
    ),
    "a parameter that may be left out": (
        lambda ours: _operation(ours)["parameters"][1].update(required=True),
        [f"{PUT} query limit"],
    ),
    "a header": (lambda ours: _operation(ours)["parameters"].pop(2), [f"{PUT} header x-key"]),
    "a request without what we want": (
        lambda ours: _operation(ours)["parameters"].append(
            {"in": "query", "name": "wait", "required": True, "schema": {}}
        ),
        [f"{PUT} query wait"],
    ),
    "a body": (lambda ours: _operation(ours).pop("requestBody"), [f"{PUT} body"]),
    "a body that may be left out": (
        lambda ours: _operation(ours)["requestBody"].update(required=True),
        [f"{PUT} body"],
    ),
    "a status": (
        lambda ours: _operation(ours)["responses"].update({"201": _operation(ours)["responses"].pop("200")}),
        [f"{PUT} status"],
    ),
    "an answer": (lambda ours: _operation(ours)["responses"]["200"].clear(), [f"{PUT} answer"]),
    "a field": (
        lambda ours: ours["components"]["schemas"]["Item"]["properties"].pop("note"),
        ["answer Item.note", "request Item.note"],
    ),
    "a field that may be left out": (
        lambda ours: ours["components"]["schemas"]["Item"]["required"].append("note"),
        ["request Item.note"],
    ),
    "null in requests": (lambda ours: _field(ours, "note", {"type": "string"}), ["request Item.note"]),
    "what is never null": (
        lambda ours: _field(ours, "id", {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ["answer Item.id"],
    ),
    "a word in requests": (lambda ours: _field(ours, "status", {"enum": ["ON"]}), ["request Item.status"]),
    "a closed set of words": (
        lambda ours: _field(ours, "status", {"enum": ["ON", "OFF", "BROKEN"]}),
        ["answer Item.status"],
    ),
    "a time's form": (lambda ours: _field(ours, "at", {"type": "string"}), ["answer Item.at"]),
    "a list's type": (
        lambda ours: _field(ours, "parts", {"type": "array", "items": {"type": "string"}}),
        ["answer Item.parts[]", "request Item.parts[]"],
    ),
    "a map's type": (
        lambda ours: _field(ours, "tags", {"type": "object", "additionalProperties": {"type": "integer"}}),
        ["answer Item.tags[]", "request Item.tags[]"],
    ),
}


@pytest.mark.parametrize("what", LESS)
def test_less_is_found(what: str) -> None:
    ours, (change, where) = copy.deepcopy(THEIRS), LESS[what]
    change(ours)
    assert sorted(compare(describe(ours), describe(THEIRS))) == where


def test_the_table_is_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "TABLE", tmp_path / "table.json")
    facts.write(THEIRS | {"info": {"version": "1"}})
    assert facts.load() == describe(THEIRS)
