"""The bodies of requests that create something: a request with a field that is unknown or fails its check is refused.

The engine accepts field names in any case, and the last of several equal names wins. So the filter forwards a new body
that it writes itself, with the fields that it has checked. An empty field is left out: the engine's default is safe.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from worker.engine.confinement import SECCOMP
from worker.engine.disk_images import MAX_BYTES, volume_options
from worker.engine.docker_client import WORKSPACE, network_data
from worker.engine.docker_engine import INSTALLATION_LABEL
from worker.engine.protocol import NetworkRequest

Check = Callable[[Any], bool]

NAME = re.compile(r"aw-[A-Za-z0-9][A-Za-z0-9_.-]{0,249}")
# The network of a node, and volumes that test what the engine can do, are not named after a sandbox.
OWN_NAME = re.compile(rf"{NAME.pattern}|agent-workspace-[A-Za-z0-9_.-]{{1,200}}")
# The filter that matches the names of sandboxes' volumes.
NAMES = "^aw-"
EMPTY: tuple[Any, ...] = (None, "", [], {}, False)
NO_NEW_PRIVILEGES = {"no-new-privileges", "no-new-privileges:true", "no-new-privileges=true"}
# A host name with an address, or with the engine's own address.
EXTRA_HOST = re.compile(r"[A-Za-z0-9.-]+:(host-gateway|[0-9A-Fa-f.:]+)")
TMPFS_OPTIONS = re.compile(r"[a-z0-9_=,%]*")
PROFILE = json.loads(SECCOMP)
LIMITS = ("Memory", "MemorySwap", "NanoCpus", "PidsLimit")


class RequestRefused(Exception):
    """The filter does not forward this request; the message says why."""


@dataclass(frozen=True)
class Policy:
    """The options that containers of this installation may have."""

    installation: str
    capabilities: frozenset[str] = frozenset()
    # The runtimes that are allowed besides the engine's default.
    runtimes: frozenset[str] = frozenset()
    # The one network that may be created, and that containers are on; None: they are on the engine's bridge.
    network: NetworkRequest | None = None


def container_body(text: bytes, name: str, policy: Policy) -> dict[str, Any]:
    """The checked body of `POST /containers/create`."""
    host = _host_config_checks(name, policy)
    checks: dict[str, Check] = {
        **dict.fromkeys(("Image", "WorkingDir", "Hostname", "MacAddress", "StopSignal"), _is_text),
        **dict.fromkeys(("Cmd", "Entrypoint", "Env"), _is_texts),
        **dict.fromkeys(("AttachStdout", "AttachStderr"), lambda value: value is True),
        "ExposedPorts": lambda ports: all(options == {} for options in ports.values()),
        "Labels": lambda labels: _are_own(labels, policy),
        "HostConfig": lambda _: True,
        "NetworkingConfig": lambda config: _is_only_network(config, policy),
    }
    body = _checked(_parse(text), checks, ("Image", "Labels", "HostConfig"), "the container")
    # Without a mode, the container would be on the engine's own bridge.
    required = ("CapDrop", "SecurityOpt", *LIMITS, *(("NetworkMode",) if policy.network else ()))
    body["HostConfig"] = _checked(body["HostConfig"], host, required, "HostConfig")
    return body


def volume_body(text: bytes, policy: Policy) -> dict[str, Any]:
    """The checked body of `POST /volumes/create`. Options can mount any folder: only those of a disk are allowed."""
    parsed = _parse(text)
    disk = volume_options(str(parsed.get("Name"))) if isinstance(parsed, dict) else {}
    checks: dict[str, Check] = {
        "Name": _is_own_name,
        "Driver": lambda driver: driver == "local",
        "DriverOpts": lambda options: options == disk,
        "Labels": lambda labels: _are_own(labels, policy),
    }
    return _checked(parsed, checks, ("Name",), "the volume")


def disk_body(text: bytes) -> int:
    """The checked body of `PUT /agent-workspace/disks/{name}`: the bytes of a new disk; 0: attach an existing one."""
    size = _checked(_parse(text), {"bytes": _is_positive}, (), "the disk").get("bytes", 0)
    if size > MAX_BYTES:
        raise RequestRefused(f"a disk has {MAX_BYTES} bytes at most")
    return int(size)


def network_body(text: bytes, policy: Policy) -> dict[str, Any]:
    """The checked body of `POST /networks/create`: the network of this node, exactly as its worker creates it."""
    if policy.network is None:
        raise RequestRefused("this node has no network of its own: AW_NETWORK_ISOLATION is off")
    body = _parse(text)
    wanted = network_data(policy.network)
    if not isinstance(body, dict) or {key: value for key, value in body.items() if value not in EMPTY} != wanted:
        raise RequestRefused("the network is not this node's")
    return wanted


def label_filters(text: str, policy: Policy, *, names: bool = False) -> str:
    """The checked `filters` of a list or of events: only what has this installation's label, or names of sandboxes.

    Raises:
        RequestRefused: the filters select more.
    """
    filters = _parse(text.encode() or b"{}")
    if not isinstance(filters, dict):
        raise RequestRefused("filters are not an object")
    labels, label = filters.get("label"), f"{INSTALLATION_LABEL}={policy.installation}"
    # The engine lists what has all of the labels, but any of the names.
    is_own = isinstance(labels, list) and label in labels
    if not is_own and not (names and filters.get("name") == [NAMES]):
        raise RequestRefused("filters do not name this installation")
    return json.dumps(filters)


def _host_config_checks(name: str, policy: Policy) -> dict[str, Check]:
    bind = f"{name}:{WORKSPACE}:rw"
    return {
        "Binds": lambda binds: binds == [bind],
        "Mounts": lambda mounts: all(_is_own_mount(mount, name) for mount in mounts),
        "Tmpfs": lambda found: all(TMPFS_OPTIONS.fullmatch(options) for options in found.values()),
        "Dns": lambda addresses: all(map(ip_address, addresses)),
        "ExtraHosts": lambda hosts: all(EXTRA_HOST.fullmatch(host) for host in hosts),
        "CapDrop": lambda names: names == ["ALL"],
        "CapAdd": lambda names: {each.removeprefix("CAP_") for each in names} <= policy.capabilities,
        "SecurityOpt": _are_confining,
        "Runtime": lambda runtime: runtime in policy.runtimes,
        "NetworkMode": lambda mode: mode in _networks(policy),
        "IpcMode": lambda mode: mode in ("private", "none"),
        "CgroupnsMode": lambda mode: mode == "private",
        "LogConfig": _is_bounded_log,
        "StorageOpt": lambda options: options.keys() <= {"size"},
        "Ulimits": lambda limits: all(limit.keys() == {"Name", "Soft", "Hard"} for limit in limits),
        **dict.fromkeys(("Init", "ReadonlyRootfs"), lambda value: value is True),
        **dict.fromkeys((*LIMITS, "ShmSize", "BlkioWeight"), _is_positive),
    }


def _checked(body: Any, checks: Mapping[str, Check], required: tuple[str, ...], place: str) -> dict[str, Any]:
    """The fields that are not empty, each of which has passed its check."""
    if not isinstance(body, dict):
        raise RequestRefused(f"{place} is not an object")
    found = {name: value for name, value in body.items() if value not in EMPTY}
    for name, value in found.items():
        if name not in checks or not _passes(checks[name], value):
            raise RequestRefused(f"{name} of {place} has a value that is not allowed")
    if missing := [name for name in required if name not in found]:
        raise RequestRefused(f"{place} has no {missing[0]}")
    return found


def _passes(check: Check, value: Any) -> bool:
    try:
        return bool(check(value))
    except (AttributeError, KeyError, TypeError, ValueError):
        return False  # a value of another type


def _parse(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RequestRefused("a body or filter is not JSON") from None


def _are_own(labels: Mapping[str, Any], policy: Policy) -> bool:
    return labels.get(INSTALLATION_LABEL) == policy.installation and all(map(_is_text, labels.values()))


def _are_confining(options: list[str]) -> bool:
    """Whether the security options are exactly the worker's: no new privileges, and its seccomp profile."""
    profiles = [option.removeprefix("seccomp=") for option in options if option.startswith("seccomp=")]
    others = {option for option in options if not option.startswith("seccomp=")}
    return others <= NO_NEW_PRIVILEGES and bool(others) and [json.loads(text) for text in profiles] == [PROFILE]


def _is_own_mount(mount: dict[str, Any], name: str) -> bool:
    filled = {key: value for key, value in mount.items() if value not in EMPTY}
    volume = {"Type": "volume", "Source": name, "Target": WORKSPACE}
    return filled in (volume, {"Type": "tmpfs", "Target": filled.get("Target")})


def _is_bounded_log(log: dict[str, Any]) -> bool:
    return (
        log.keys() <= {"Type", "Config"}
        and log["Type"] == "json-file"
        and set(log["Config"]) == {"max-size", "max-file"}
    )


def _networks(policy: Policy) -> tuple[str, ...]:
    return ("none", policy.network.name) if policy.network else ("none", "default", "bridge")


def _is_only_network(config: dict[str, Any], policy: Policy) -> bool:
    # The container can't choose its address: the engine chooses one for which no rule allows anything.
    return config == {"EndpointsConfig": {_networks(policy)[1]: None}}


def _is_name(value: str) -> bool:
    return NAME.fullmatch(value) is not None


def _is_own_name(value: str) -> bool:
    return OWN_NAME.fullmatch(value) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_positive(value: Any) -> bool:
    return isinstance(value, int) and value > 0
