"""This service has all of V1's interface, with the same types, except for the parts in `lacking.toml`."""

import copy
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from shared.sandboxes.deadlines import FIELDS
from tests.contract.surface import table
from tests.contract.surface.comparison import compare
from tests.contract.surface.description import Document, describe
from tests.docs.documents import list_inline_code, read_page, read_section

MISSING = Path(__file__).with_name("lacking.toml")

Change = Callable[[Document], Any]


def known_gaps() -> set[str]:
    """The locations of all parts that are known to be missing or different."""
    return {where for entries in tomllib.loads(MISSING.read_text()).values() for where in entries}


def test_v1_interface_is_complete_except_for_known_gaps(client: TestClient) -> None:
    assert isinstance(client.app, FastAPI)
    findings = compare(describe(client.app.openapi()), table.load())
    assert {where: what for where, what in findings.items() if where not in known_gaps()} == {}


def test_known_gaps_still_exist(client: TestClient) -> None:
    assert isinstance(client.app, FastAPI)
    findings = compare(describe(client.app.openapi()), table.load())
    assert known_gaps() - findings.keys() == set(), "remove these from lacking.toml"


@pytest.mark.parametrize("name", ["SandboxInfo", "SandboxSpecInfo", "AppConversation"])
def test_fields_beyond_v1_are_named_as_extensions(client: TestClient, name: str) -> None:
    assert isinstance(client.app, FastAPI)
    own, of_v1 = (described.models[name].fields for described in (describe(client.app.openapi()), table.load()))
    named = list_inline_code(read_section(read_page("reference/compatibility.md"), "Extensions"))
    # The page calls the four fields of the deadlines "the deadlines".
    assert own.keys() - of_v1.keys() - set(named) <= set(FIELDS)


ITEM: Document = {
    "properties": {
        "id": {"type": "string"},
        "at": {"type": "string", "format": "date-time"},
        "status": {"enum": ["ON", "OFF"]},
        "remark": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "parts": {"type": "array", "items": {"type": "integer"}},
        "tags": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["id"],
}
REFERENCE: Document = {
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


def test_interface_is_compatible_with_itself() -> None:
    assert compare(describe(REFERENCE), describe(REFERENCE)) == {}


def _operation(document: Document) -> Document:
    found: Document = document["paths"]["/things/{id}"]["put"]
    return found


def _field(document: Document, name: str, schema: Document) -> None:
    document["components"]["schemas"]["Item"]["properties"][name] = schema


MORE: dict[str, Change] = {
    "a placeholder's name": lambda service: (
        service["paths"].update({"/things/{name}": service["paths"].pop("/things/{id}")}),
        service["paths"]["/things/{name}"]["put"]["parameters"][0].update(name="name"),
    ),
    "an operation": lambda service: service["paths"].update({"/others": {}}),
    "an optional parameter": lambda service: _operation(service)["parameters"].append(
        {"in": "query", "name": "wait", "schema": {"type": "integer"}}
    ),
    "a field": lambda service: _field(service, "extra", {"type": "string"}),
}


@pytest.mark.parametrize("what", MORE)
def test_additions_are_compatible(what: str) -> None:
    service = copy.deepcopy(REFERENCE)
    MORE[what](service)
    assert compare(describe(service), describe(REFERENCE)) == {}


PUT = "PUT /things/{id}"
LESS: dict[str, tuple[Change, list[str]]] = {
    "a path": (lambda service: service["paths"].clear(), [PUT]),
    "a method": (lambda service: service["paths"]["/things/{id}"].clear(), [PUT]),
    "a parameter": (lambda service: _operation(service)["parameters"].pop(1), [f"{PUT} query limit"]),
    "a parameter's place": (
        lambda service: _operation(service)["parameters"][1].update({"in": "header"}),
        [f"{PUT} query limit"],
    ),
    "a parameter's type": (
        lambda service: _operation(service)["parameters"][1].update(schema={"type": "boolean"}),
        [f"{PUT} query limit"],
    ),
    "a parameter that may be left out": (
        lambda service: _operation(service)["parameters"][1].update(required=True),
        [f"{PUT} query limit"],
    ),
    "a header": (lambda service: _operation(service)["parameters"].pop(2), [f"{PUT} header x-key"]),
    "a new required parameter": (
        lambda service: _operation(service)["parameters"].append(
            {"in": "query", "name": "wait", "required": True, "schema": {}}
        ),
        [f"{PUT} query wait"],
    ),
    "a body": (lambda service: _operation(service).pop("requestBody"), [f"{PUT} body"]),
    "a body that may be left out": (
        lambda service: _operation(service)["requestBody"].update(required=True),
        [f"{PUT} body"],
    ),
    "a status": (
        lambda service: _operation(service)["responses"].update({"201": _operation(service)["responses"].pop("200")}),
        [f"{PUT} status"],
    ),
    "an answer": (lambda service: _operation(service)["responses"]["200"].clear(), [f"{PUT} answer"]),
    "a field": (
        lambda service: service["components"]["schemas"]["Item"]["properties"].pop("remark"),
        ["answer Item.remark", "request Item.remark"],
    ),
    "a field that may be left out": (
        lambda service: service["components"]["schemas"]["Item"]["required"].append("remark"),
        ["request Item.remark"],
    ),
    "null in requests": (lambda service: _field(service, "remark", {"type": "string"}), ["request Item.remark"]),
    "what is never null": (
        lambda service: _field(service, "id", {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ["answer Item.id"],
    ),
    "a word in requests": (lambda service: _field(service, "status", {"enum": ["ON"]}), ["request Item.status"]),
    "a closed set of words": (
        lambda service: _field(service, "status", {"enum": ["ON", "OFF", "BROKEN"]}),
        ["answer Item.status"],
    ),
    "a time's form": (lambda service: _field(service, "at", {"type": "string"}), ["answer Item.at"]),
    "a list's type": (
        lambda service: _field(service, "parts", {"type": "array", "items": {"type": "string"}}),
        ["answer Item.parts[]", "request Item.parts[]"],
    ),
    "a map's type": (
        lambda service: _field(service, "tags", {"type": "object", "additionalProperties": {"type": "integer"}}),
        ["answer Item.tags[]", "request Item.tags[]"],
    ),
}


@pytest.mark.parametrize("what", LESS)
def test_gaps_are_found(what: str) -> None:
    service, (change, where) = copy.deepcopy(REFERENCE), LESS[what]
    change(service)
    assert sorted(compare(describe(service), describe(REFERENCE))) == where


def test_table_can_be_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "TABLE", tmp_path / "table.json")
    table.write(REFERENCE | {"info": {"version": "1"}})
    assert table.load() == describe(REFERENCE)
