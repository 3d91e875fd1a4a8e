"""The requests that a worker makes, checked and rewritten. Everything else is refused."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from deploy.engine_filter.bodies import (
    NAME,
    OWN_NAME,
    Policy,
    RequestRefused,
    container_body,
    label_filters,
    network_body,
    volume_body,
)
from worker.engine.docker_engine import DISPLACED, INSTALLATION_LABEL, SANDBOX_LABEL

# Every path may begin with a version of the engine's interface.
VERSION = re.compile(r"/v1\.[0-9]{1,3}(?=/)")
IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@/-]{0,400}")


@dataclass(frozen=True)
class Request:
    """A request, with its query as a mapping: a name that comes twice is refused."""

    method: str
    version: str
    path: str
    query: dict[str, str]
    body: bytes = b""
    content_type: str = ""

    @property
    def target(self) -> str:
        """Path and query, as they are sent."""
        return self.version + self.path + (f"?{urlencode(self.query)}" if self.query else "")


@dataclass(frozen=True)
class RuleContext:
    """What a check may use."""

    policy: Policy
    # Reads the engine's object at a path; returns None if it does not exist.
    inspect: Callable[[str], dict[str, Any] | None]


Rule = Callable[[Request, "re.Match[str]", RuleContext], Request]


def parse(method: str, target: str, body: bytes, content_type: str) -> Request:
    """Parse a request.

    Raises:
        RequestRefused: the request is malformed or ambiguous.
    """
    try:
        parts = urlsplit(target)
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise RequestRefused("the request is malformed") from None
    version = VERSION.match(parts.path)
    if len(dict(query)) < len(query) or parts.scheme or parts.netloc or parts.fragment or "/../" in parts.path:
        raise RequestRefused("the request is ambiguous")
    prefix = version.group() if version else ""
    return Request(method, prefix, parts.path.removeprefix(prefix).replace("%40", "@"), dict(query), body, content_type)


def admit(request: Request, context: RuleContext) -> Request:
    """The request to forward.

    Raises:
        RequestRefused: a worker does not make such a request.
    """
    for methods, pattern, query, rule in RULES:
        found = re.fullmatch(pattern, request.path)
        if found and request.method in methods.split():
            if excess := request.query.keys() - set(query.split()):
                raise RequestRefused(f"{request.path} has the parameter {min(excess)}")
            return rule(request, found, context)
    raise RequestRefused("workers do not make this request")


def _pass(request: Request, _found: "re.Match[str]", _context: RuleContext) -> Request:
    return replace(request, body=b"")


def _list(request: Request, _found: "re.Match[str]", context: RuleContext) -> Request:
    names = request.path == "/volumes"
    filters = label_filters(request.query.get("filters", ""), context.policy, names=names)
    return replace(request, query=request.query | {"filters": filters}, body=b"")


def _pull(request: Request, _found: "re.Match[str]", _context: RuleContext) -> Request:
    if not IMAGE.fullmatch(request.query.get("fromImage", "")):
        raise RequestRefused("the image has no valid name")
    return replace(request, body=b"")


def _own_container(request: Request, found: "re.Match[str]", context: RuleContext) -> Request:
    """Refer to the container by its id: another container may have the name later."""
    inspected = _inspect(context, "containers", found["name"], "/json")
    labels = (inspected or {}).get("Config", {}).get("Labels")
    _require_own(inspected, labels, context)
    path = request.path if inspected is None else request.path.replace(found["name"], inspected["Id"], 1)
    return replace(request, path=path, body=request.body if request.method == "PUT" else b"")


def _rename(request: Request, found: "re.Match[str]", context: RuleContext) -> Request:
    """Let a container get only the name of its own sandbox, or one that shows that this name is taken."""
    inspected = _inspect(context, "containers", found["name"], "/json")
    labels = (inspected or {}).get("Config", {}).get("Labels") or {}
    _require_own(inspected, labels, context)
    own_name = f"aw-{labels.get(SANDBOX_LABEL)}"
    if SANDBOX_LABEL not in labels or request.query.get("name") not in (own_name, own_name + DISPLACED):
        raise RequestRefused("the name is not that of the container's sandbox")
    return replace(request, body=b"")


def _own_volume(request: Request, found: "re.Match[str]", context: RuleContext) -> Request:
    _require_own_volume(found["name"], context)
    return replace(request, body=b"")


def _own_network(request: Request, found: "re.Match[str]", context: RuleContext) -> Request:
    _require_own_network(found["name"], context)
    return replace(request, body=b"")


def _create_container(request: Request, _found: "re.Match[str]", context: RuleContext) -> Request:
    name = request.query.get("name", "")
    if not NAME.fullmatch(name):
        raise RequestRefused("the container has no name of a sandbox")
    body = container_body(request.body, name, context.policy)
    _require_own_volume(name, context)
    networks = {*body.get("NetworkingConfig", {}).get("EndpointsConfig", {}), body["HostConfig"].get("NetworkMode", "")}
    for network in filter(OWN_NAME.fullmatch, networks):
        _require_own_network(network, context)
    return _with_body(request, body)


def _create_volume(request: Request, _found: "re.Match[str]", context: RuleContext) -> Request:
    body = volume_body(request.body, context.policy)
    _require_own_volume(body["Name"], context)  # the engine returns an existing one
    return _with_body(request, body)


def _create_network(request: Request, _found: "re.Match[str]", context: RuleContext) -> Request:
    return _with_body(request, network_body(request.body, context.policy))


def _require_own_volume(name: str, context: RuleContext) -> None:
    """Check that the volume is this installation's, or one without labels, which the engine made for a container."""
    volume = _inspect(context, "volumes", name)
    labels = (volume or {}).get("Labels") or {}
    if INSTALLATION_LABEL in labels:
        _require_own(volume, labels, context)
    elif (volume or {}).get("Options"):
        raise RequestRefused("the volume has options, and may be a folder of the host")


def _require_own_network(name: str, context: RuleContext) -> None:
    network = _inspect(context, "networks", name)
    _require_own(network, (network or {}).get("Labels"), context)


def _require_own(found: dict[str, Any] | None, labels: dict[str, str] | None, context: RuleContext) -> None:
    if found is not None and (labels or {}).get(INSTALLATION_LABEL) != context.policy.installation:
        raise RequestRefused("it does not belong to this installation")


def _inspect(context: RuleContext, kind: str, name: str, suffix: str = "") -> dict[str, Any] | None:
    return context.inspect(f"/{kind}/{name}{suffix}")


def _with_body(request: Request, body: dict[str, Any]) -> Request:
    return replace(request, body=json.dumps(body).encode(), content_type="application/json")


_NAME, _OWN_NAME = (f"(?P<name>{pattern.pattern})" for pattern in (NAME, OWN_NAME))
_ID = "(?P<name>[0-9a-f]{64})"
# Methods, path, parameters of the query, check.
RULES: list[tuple[str, str, str, Rule]] = [
    ("GET HEAD", "/_ping", "", _pass),
    ("GET", "/version|/info", "", _pass),
    ("GET", "/events", "since until filters", _list),
    ("GET", "/containers/json", "all limit size trunc_cmd filters", _list),
    ("POST", "/containers/create", "name", _create_container),
    ("GET", f"/containers/{_NAME}/json", "", _own_container),
    ("GET", f"/containers/{_NAME}/logs", "stdout stderr timestamps follow tail since", _own_container),
    ("GET HEAD", f"/containers/{_NAME}/archive", "path", _own_container),
    ("PUT", f"/containers/{_NAME}/archive", "path", _own_container),
    ("POST", f"/containers/{_NAME}/(start|pause|unpause|stop|kill)", "t signal", _own_container),
    ("POST", f"/containers/{_ID}/rename", "name", _rename),
    ("DELETE", f"/containers/{_NAME}", "v link force", _own_container),
    ("GET", f"/images/{IMAGE.pattern}/json", "", _pass),
    ("POST", "/images/create", "fromImage tag", _pull),
    ("GET", "/volumes", "filters", _list),
    ("POST", "/volumes/create", "", _create_volume),
    ("GET DELETE", f"/volumes/{_OWN_NAME}", "force", _own_volume),
    ("POST", "/networks/create", "", _create_network),
    ("GET", f"/networks/{_OWN_NAME}", "", _own_network),
]
