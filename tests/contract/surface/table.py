"""The table of V1's interface, `v1.json`: written from V1's OpenAPI document, read by the tests."""

import json
from pathlib import Path
from typing import Any

from tests.contract.surface.description import Description, Document, Model, Operation, Type, describe

TABLE = Path(__file__).with_name("v1.json")
# Models that the agent server defines and the app server passes on, or that belong to another document.
OPAQUE = ("ConversationInfo", "Event-Input", "Event-Output", "MCPConfig", "StrictLLM")
OPAQUE_PREFIXES = ("EventCallbackProcessor",)
MAX_LINE_LENGTH = 118

Table = dict[str, Any]


def load() -> Description:
    """V1's description."""
    content: Table = json.loads(TABLE.read_text())
    return Description(
        {name: _read_operation(entry) for name, entry in content["operations"].items()},
        {name: _read_model(entry) for name, entry in content["models"].items()},
    )


def write(document: Document) -> None:
    """Write the table from V1's OpenAPI document, without models that no operation refers to."""
    described = describe(document)
    models = _reachable(described)
    content = {
        "about": f"OpenHands V1, {document['info']['version']}: its interface; `!` marks what must be there",
        "operations": {name: _write_operation(one) for name, one in described.operations.items()},
        "models": {name: _write_model(model) for name, model in sorted(models.items())},
    }
    TABLE.write_text(_lay_out(content) + "\n")


def _reachable(described: Description) -> dict[str, Model | Type]:
    found: dict[str, Model | Type] = {}
    waiting: list[Any] = [
        [*one.parameters.fields.values(), one.body, one.answer] for one in described.operations.values()
    ]
    while waiting:
        type_ = waiting.pop()
        if isinstance(type_, list):
            waiting += type_
        elif isinstance(type_, dict):
            waiting += [part for kind, part in type_.items() if kind != "enum"]
        elif isinstance(type_, str) and type_ in described.models and type_ not in found:
            found[type_] = "object" if _is_opaque(type_) else described.models[type_]
            model = found[type_]
            waiting.append(list(model.fields.values()) if isinstance(model, Model) else model)
    return found


def _is_opaque(name: str) -> bool:
    return name in OPAQUE or name.startswith(OPAQUE_PREFIXES)


def _write_operation(operation: Operation) -> Table:
    entry: Table = {}
    if operation.parameters.fields:
        entry["parameters"] = _write_model(operation.parameters)
    if operation.body != "nothing":
        entry["body!" if operation.body_required else "body"] = operation.body
    if operation.status != 200:
        entry["status"] = operation.status
    return entry | {"answer": operation.answer}


def _read_operation(entry: Table) -> Operation:
    parameters = _read_model(entry.get("parameters", {}))
    assert isinstance(parameters, Model)
    body = entry.get("body!", entry.get("body", "nothing"))
    return Operation(parameters, body, "body!" in entry, entry.get("status", 200), entry["answer"])


def _write_model(model: Model | Type) -> Any:
    if not isinstance(model, Model):
        return {"type": model}
    return {f"{name}!" if name in model.required else name: type_ for name, type_ in model.fields.items()}


def _read_model(entry: Any) -> Model | Type:
    if set(entry) == {"type"}:
        return entry["type"]
    fields = {name.removesuffix("!"): type_ for name, type_ in entry.items()}
    return Model(fields, frozenset(name[:-1] for name in entry if name.endswith("!")))


def _lay_out(value: Any, indent: int = 0, taken: int = 0) -> str:
    """Format JSON with one line for each value that fits; `taken` is the width already used in the line."""
    text = json.dumps(value)
    if not isinstance(value, dict | list) or len(text) + taken < MAX_LINE_LENGTH:
        return text
    opened, closed = "{}" if isinstance(value, dict) else "[]"
    inner = " " * (indent + 1)
    entries = value.items() if isinstance(value, dict) else [(None, part) for part in value]
    lines = []
    for name, part in entries:
        start = inner if name is None else f"{inner}{json.dumps(name)}: "
        lines.append(start + _lay_out(part, indent + 1, len(start)))
    return opened + "\n" + ",\n".join(lines) + "\n" + " " * indent + closed
