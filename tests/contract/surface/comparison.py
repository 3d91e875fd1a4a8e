"""What of another interface ours lacks. What ours has beyond it, and what it asks less or promises more, is all right.

An answer may say less than theirs could (no null, fewer words of an enumeration), a request may say more: a client of
theirs can't tell the difference.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.contract.surface.description import Description, Model, Type

# (where, what): `where` is the same from run to run, so that lists can name it.
Finding = tuple[str, str]

# A value of the first type is one of the second.
WIDER = [["integer", "number"], ["string:uuid", "string"], ["string:date-time", "string"]]


def compare(ours: Description, theirs: Description) -> dict[str, str]:
    """What we lack of theirs, by where it is: `GET /path`, `GET /path query name`, or `answer Model.field`."""
    own = {_anonymous(name): name for name in ours.operations}
    findings: dict[str, str] = {}
    for name in theirs.operations:
        found = own.get(_anonymous(name))
        findings |= {name: "not there"} if found is None else dict(_operation(name, found, ours, theirs))
    return findings


def _anonymous(name: str) -> str:
    """An operation's name whatever the placeholders of its path are called."""
    return "".join("{}" if number % 2 else part for number, part in enumerate(_split(name)))


def _split(path: str) -> list[str]:
    return path.replace("}", "{").split("{")


def _operation(name: str, found: str, ours: Description, theirs: Description) -> Iterator[Finding]:
    own, other = ours.operations[found], theirs.operations[name]
    asked = _Walk(theirs, ours, "request")
    placeholders = dict(zip(_split(name)[1::2], _split(found)[1::2], strict=True))
    own_names = {f"path {placeholder}": f"path {ours_}" for placeholder, ours_ in placeholders.items()}
    yield from _parameters(name, own.parameters, other.parameters, own_names, asked)
    if other.body != "nothing":
        yield from asked.fits(other.body, own.body, f"{name} body")
        if own.body_required and not other.body_required:
            yield f"{name} body", "required"
    if own.status != other.status:
        yield f"{name} status", f"{own.status} instead of {other.status}"
    yield from _Walk(ours, theirs, "answer").fits(own.answer, other.answer, f"{name} answer")


def _parameters(name: str, own: Model, other: Model, own_names: dict[str, str], asked: "_Walk") -> Iterator[Finding]:
    for key, type_ in other.fields.items():
        own_key = own_names.get(key, key)
        if own_key not in own.fields:
            yield f"{name} {key}", "not there"
        else:
            yield from asked.fits(type_, own.fields[own_key], f"{name} {key}")
    # Those of the path are in it, whatever they are called.
    demanded = own.required - {own_names.get(key, key) for key in other.required}
    yield from ((f"{name} {key}", "required") for key in sorted(demanded) if not key.startswith("path "))


@dataclass
class _Walk:
    """Holds what one side gives against what the other side takes: in answers we give, in requests we take."""

    giver: Description
    taker: Description
    direction: str
    seen: set[tuple[str, str]] = field(default_factory=set)

    def fits(self, given: Type, taken: Type, where: str) -> Iterator[Finding]:
        """What of the given could not be taken."""
        if taken == "any" or given == taken == "nothing":
            return
        context = given if isinstance(given, list) else [given]
        for part in context:
            alternatives = self._alike(part, taken if isinstance(taken, list) else [taken])
            findings = [list(self._one(part, alternative, where)) for alternative in alternatives]
            yield from min(findings, key=len)

    def _alike(self, given: Type, alternatives: list[Type]) -> list[Type]:
        """The alternatives that a finding should speak of: objects for an object."""
        kind = type(self._resolved(given, None)[0])
        return [one for one in alternatives if type(self._resolved(None, one)[1]) is kind] or alternatives

    def _one(self, given: Type, taken: Type, where: str) -> Iterator[Finding]:
        given, taken, given_name, taken_name = *self._resolved(given, taken), given, taken
        if isinstance(given, Model) and isinstance(taken, Model):
            yield from self._models(given, taken, str(given_name), str(taken_name))
        elif isinstance(given, dict) and isinstance(taken, dict) and given.keys() == taken.keys():
            yield from self._composites(given, taken, where)
        elif given == "object" and isinstance(taken, Model) and self.direction == "request" and not taken.required:
            return  # free-form: what we know of it is ours to say
        elif not _is_taken(given, taken):
            yield where, f"{_shown(given_name, given)} where {_shown(taken_name, taken)} is expected"

    def _resolved(self, given: Type, taken: Type) -> tuple[Any, Any]:
        """What the names stand for."""
        while isinstance(given, str) and given in self.giver.models:
            given = self.giver.models[given]
        while isinstance(taken, str) and taken in self.taker.models:
            taken = self.taker.models[taken]
        return given, taken

    def _models(self, given: Model, taken: Model, given_name: str, taken_name: str) -> Iterator[Finding]:
        if (given_name, taken_name) in self.seen:
            return
        self.seen.add((given_name, taken_name))
        # The fields that count are theirs: those that are read of an answer, or sent in a request.
        theirs, ours = (taken, given) if self.direction == "answer" else (given, taken)
        name = f"{self.direction} {taken_name if self.direction == 'answer' else given_name}"
        for key in theirs.fields:
            if key not in ours.fields:
                yield f"{name}.{key}", "not there"
            else:
                yield from self.fits(given.fields[key], taken.fields[key], f"{name}.{key}")
        if self.direction == "request":
            for key in sorted(ours.required - theirs.required):
                yield f"{name}.{key}", "required"

    def _composites(self, given: dict[str, Any], taken: dict[str, Any], where: str) -> Iterator[Finding]:
        if "enum" in given:
            if foreign := [value for value in given["enum"] if value not in taken["enum"]]:
                yield where, f"one of {foreign} is not expected"
            return
        kind = next(iter(given))
        yield from self.fits(given[kind], taken[kind], f"{where}[]")


def _is_taken(given: Any, taken: Any) -> bool:
    if given == taken:
        return True
    if taken == "object":
        return isinstance(given, Model) or (isinstance(given, dict) and "map" in given)
    if isinstance(given, dict) and "enum" in given:
        return taken == "string" and all(isinstance(value, str) for value in given["enum"])
    return [given, taken] in WIDER


def _shown(name: Type, type_: Any) -> str:
    if isinstance(type_, Model):
        return str(name)
    return f"{name} {type_}" if name != type_ else str(type_)
