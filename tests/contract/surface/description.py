"""A short description of an HTTP interface: its OpenAPI document without the texts.

A type is a text ("string", "string:date-time", "any", or a model's name), null, a list of alternatives, or one of
{"list": type}, {"map": type}, {"enum": [values]}.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Type = Any
Document = dict[str, Any]
Fields = dict[str, Type]

METHODS = ("get", "post", "put", "patch", "delete")
# Text formats that clients parse; `password` and similar ones concern the display only.
FORMATS = ("date-time", "uuid")
PLACES = ("path", "query", "header")


@dataclass(frozen=True)
class Model:
    """An object's fields, and the required ones among them."""

    fields: Fields
    required: frozenset[str]


@dataclass(frozen=True)
class Operation:
    """One method of one path: its parameters by `<place> <name>`, its body, and its successful response."""

    parameters: Model
    body: Type
    body_required: bool
    status: int
    answer: Type


@dataclass(frozen=True)
class Description:
    """Operations by `<METHOD> <path>`, and models by name; a schema without properties is its plain type."""

    operations: dict[str, Operation]
    models: dict[str, Model | Type]


def describe(document: Document) -> Description:
    """Describe the interface of an OpenAPI document."""
    schemas = document.get("components", {}).get("schemas", {})
    return Description(
        {f"{method.upper()} {path}": _operation(details) for path, method, details in _operations(document)},
        {short_name(name): _model(schema) for name, schema in schemas.items()},
    )


def short_name(name: str) -> str:
    """A model's name without the module that FastAPI prepends to ambiguous names."""
    return name.rsplit("__", 1)[-1]


def _operations(document: Document) -> Iterator[tuple[str, str, Document]]:
    for path, methods in document["paths"].items():
        for method in METHODS:
            if method in methods:
                yield path, method, methods[method]


def _operation(details: Document) -> Operation:
    # The success status, or the only status of an operation that never succeeds.
    status = int(min(details["responses"], key=lambda code: (not code.startswith("2"), code)))
    body = details.get("requestBody", {})
    return Operation(
        _parameters(details.get("parameters", [])),
        _content(body),
        body.get("required", False),
        status,
        _content(details["responses"][str(status)]),
    )


def _parameters(listed: list[Document]) -> Model:
    # Header names are case-insensitive.
    named = {
        f"{entry['in']} {entry['name'].lower() if entry['in'] == 'header' else entry['name']}": entry
        for entry in listed
        if entry["in"] in PLACES
    }
    return Model(
        {name: read_type(entry["schema"]) for name, entry in named.items()},
        frozenset(name for name, entry in named.items() if entry.get("required", False)),
    )


def _content(part: Document) -> Type:
    """The type of a body; "nothing" without a body."""
    content = part.get("content", {})
    if not content:
        return "nothing"
    media = content.get("application/json") or next(iter(content.values()))
    return read_type(media.get("schema", {}))


def _model(schema: Document) -> Model | Type:
    if "properties" not in schema:
        return read_type(schema)
    fields = {name: read_type(field) for name, field in schema["properties"].items()}
    return Model(fields, frozenset(schema.get("required", ())))


def read_type(schema: Document) -> Type:
    """The type of a JSON schema."""
    if "$ref" in schema:
        return short_name(schema["$ref"].rsplit("/", 1)[-1])
    if alternatives := schema.get("anyOf") or schema.get("oneOf"):
        return _union([read_type(alternative) for alternative in alternatives])
    if "const" in schema or "enum" in schema:
        return {"enum": schema.get("enum", [schema.get("const")])}
    return _plain(schema)


def _plain(schema: Document) -> Type:
    match schema.get("type"):
        case "null":
            return None
        case "array":
            return {"list": read_type(schema.get("items", {}))}
        case "object":
            values = schema.get("additionalProperties")
            return {"map": read_type(values)} if isinstance(values, dict) and values else "object"
        case name:
            kind = name or "any"
            return f"{kind}:{schema['format']}" if schema.get("format") in FORMATS else kind


def _union(types: list[Type]) -> Type:
    flat = [part for type_ in types for part in (type_ if isinstance(type_, list) else [type_])]
    # A text and a text with the format `password` are read as the same type.
    unique = [part for number, part in enumerate(flat) if part not in flat[:number]]
    return unique[0] if len(unique) == 1 else unique
