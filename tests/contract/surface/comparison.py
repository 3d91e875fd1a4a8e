"""Comparison of this service's interface with a reference interface.

Findings are the parts of the reference that the service does not support. Additions are compatible, and so are fewer
requirements in requests and stronger promises in responses: a response may have fewer values (no null, a smaller
enumeration) and a request may accept more, because clients of the reference can't notice it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.contract.surface.description import Description, Model, Type

# (where, what): `where` is the same from run to run, so that lists can name it.
Finding = tuple[str, str]

# A value of the first type is a value of the second type.
WIDER = [["integer", "number"], ["string:uuid", "string"], ["string:date-time", "string"]]


def compare(service: Description, reference: Description) -> dict[str, str]:
    """The findings by location: `GET /path`, `GET /path query name`, or `answer Model.field`."""
    own = {_anonymous(name): name for name in service.operations}
    findings: dict[str, str] = {}
    for name in reference.operations:
        found = own.get(_anonymous(name))
        findings |= {name: "missing"} if found is None else dict(_operation(name, found, service, reference))
    return findings


def _anonymous(name: str) -> str:
    """An operation's name without the names of its path's placeholders."""
    return "".join("{}" if number % 2 else part for number, part in enumerate(_split(name)))


def _split(path: str) -> list[str]:
    return path.replace("}", "{").split("{")


def _operation(name: str, found: str, service: Description, reference: Description) -> Iterator[Finding]:
    own, other = service.operations[found], reference.operations[name]
    requests = _Walk(reference, service, "request")
    placeholders = dict(zip(_split(name)[1::2], _split(found)[1::2], strict=True))
    own_names = {f"path {placeholder}": f"path {own_name}" for placeholder, own_name in placeholders.items()}
    yield from _parameters(name, own.parameters, other.parameters, own_names, requests)
    if other.body != "nothing":
        yield from requests.fits(other.body, own.body, f"{name} body")
        if own.body_required and not other.body_required:
            yield f"{name} body", "required"
    if own.status != other.status:
        yield f"{name} status", f"{own.status} instead of {other.status}"
    yield from _Walk(service, reference, "answer").fits(own.answer, other.answer, f"{name} answer")


def _parameters(name: str, own: Model, other: Model, own_names: dict[str, str], walk: "_Walk") -> Iterator[Finding]:
    for key, type_ in other.fields.items():
        own_key = own_names.get(key, key)
        if own_key not in own.fields:
            yield f"{name} {key}", "missing"
        else:
            yield from walk.fits(type_, own.fields[own_key], f"{name} {key}")
    # Path parameters always match, because the paths do.
    demanded = own.required - {own_names.get(key, key) for key in other.required}
    yield from ((f"{name} {key}", "required") for key in sorted(demanded) if not key.startswith("path "))


@dataclass
class _Walk:
    """Checks the types of a sender against those of a receiver; the service sends responses and receives requests."""

    sender: Description
    receiver: Description
    direction: str
    seen: set[tuple[str, str]] = field(default_factory=set)

    def fits(self, sent: Type, accepted: Type, where: str) -> Iterator[Finding]:
        """The sent types that the receiver does not accept."""
        if accepted == "any" or sent == accepted == "nothing":
            return
        context = sent if isinstance(sent, list) else [sent]
        for part in context:
            alternatives = self._alike(part, accepted if isinstance(accepted, list) else [accepted])
            findings = [list(self._one(part, alternative, where)) for alternative in alternatives]
            yield from min(findings, key=len)

    def _alike(self, sent: Type, alternatives: list[Type]) -> list[Type]:
        """The alternatives to compare a sent type with: those of its kind, such as models for a model, or else all."""
        kind = type(self._resolved(sent, None)[0])
        return [one for one in alternatives if type(self._resolved(None, one)[1]) is kind] or alternatives

    def _one(self, sent: Type, accepted: Type, where: str) -> Iterator[Finding]:
        sent, accepted, sent_name, accepted_name = *self._resolved(sent, accepted), sent, accepted
        if isinstance(sent, Model) and isinstance(accepted, Model):
            yield from self._models(sent, accepted, str(sent_name), str(accepted_name))
        elif isinstance(sent, dict) and isinstance(accepted, dict) and sent.keys() == accepted.keys():
            yield from self._composites(sent, accepted, where)
        elif sent == "object" and isinstance(accepted, Model) and self.direction == "request" and not accepted.required:
            return  # free-form: the service may define its fields
        elif not _is_accepted(sent, accepted):
            yield where, f"{_shown(sent_name, sent)} where {_shown(accepted_name, accepted)} is expected"

    def _resolved(self, sent: Type, accepted: Type) -> tuple[Any, Any]:
        """The types behind the names."""
        while isinstance(sent, str) and sent in self.sender.models:
            sent = self.sender.models[sent]
        while isinstance(accepted, str) and accepted in self.receiver.models:
            accepted = self.receiver.models[accepted]
        return sent, accepted

    def _models(self, sent: Model, accepted: Model, sent_name: str, accepted_name: str) -> Iterator[Finding]:
        if (sent_name, accepted_name) in self.seen:
            return
        self.seen.add((sent_name, accepted_name))
        # The reference determines the fields: those that its clients read in a response, or send in a request.
        reference, service = (accepted, sent) if self.direction == "answer" else (sent, accepted)
        name = f"{self.direction} {accepted_name if self.direction == 'answer' else sent_name}"
        for key in reference.fields:
            if key not in service.fields:
                yield f"{name}.{key}", "missing"
            else:
                yield from self.fits(sent.fields[key], accepted.fields[key], f"{name}.{key}")
        if self.direction == "request":
            for key in sorted(service.required - reference.required):
                yield f"{name}.{key}", "required"

    def _composites(self, sent: dict[str, Any], accepted: dict[str, Any], where: str) -> Iterator[Finding]:
        if "enum" in sent:
            if foreign := [value for value in sent["enum"] if value not in accepted["enum"]]:
                yield where, f"one of {foreign} is not expected"
            return
        kind = next(iter(sent))
        yield from self.fits(sent[kind], accepted[kind], f"{where}[]")


def _is_accepted(sent: Any, accepted: Any) -> bool:
    if sent == accepted:
        return True
    if accepted == "object":
        return isinstance(sent, Model) or (isinstance(sent, dict) and "map" in sent)
    if isinstance(sent, dict) and "enum" in sent:
        return accepted == "string" and all(isinstance(value, str) for value in sent["enum"])
    return [sent, accepted] in WIDER


def _shown(name: Type, type_: Any) -> str:
    if isinstance(type_, Model):
        return str(name)
    return f"{name} {type_}" if name != type_ else str(type_)
