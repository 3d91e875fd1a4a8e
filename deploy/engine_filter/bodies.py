"""The bodies of requests that create something: each field is known and checked, or refused.

The engine reads names of fields in any case, and the last of several wins. So the filter forwards a new body that it
writes itself, with the fields that it has checked. An empty field is left out: the engine's default is safe.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from worker.engine.docker_client import WORKSPACE
from worker.engine.docker_engine import INSTALLATION_LABEL

Check = Callable[[Any], bool]

NAME = re.compile(r"aw-[A-Za-z0-9][A-Za-z0-9_.-]{0,249}")
# Networks of an installation, and volumes that show what the engine can do, are not named after a sandbox.
OWN_NAME = re.compile(rf"{NAME.pattern}|agent-workspace-[A-Za-z0-9_.-]{{1,200}}")
EMPTY: tuple[Any, ...] = (None, "", [], {}, False)
NO_NEW_PRIVILEGES = {"no-new-privileges", "no-new-privileges:true", "no-new-privileges=true"}
# A host name with an address, or with the engine's own address.
EXTRA_HOST = re.compile(r"[A-Za-z0-9.-]+:(host-gateway|[0-9A-Fa-f.:]+)")
TMPFS_OPTIONS = re.compile(r"[a-z0-9=,%]*")
# The bridge itself is a new one: a container on one of the host's would be on the host's network.
NETWORK_OPTION = re.compile(
    r"com\.docker\.network\.(bridge\.name=(br-)?aw[a-z0-9-]{0,10}|bridge\.(enable|host|gateway|inhibit)_\w+=.*|driver\.mtu=\d+)"
)
LIMITS = ("Memory", "MemorySwap", "NanoCpus", "PidsLimit")


class Refused(Exception):
    """The filter does not forward this request; the text says why."""


@dataclass(frozen=True)
class Policy:
    """What containers of this installation may have."""

    installation: str
    capabilities: frozenset[str] = frozenset()
    # Beside the engine's default.
    runtimes: frozenset[str] = frozenset()
    # Beside the engine's default.
    seccomp: Sequence[Any] = ()


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
        "NetworkingConfig": _is_own_network,
    }
    body = _checked(_parse(text), checks, ("Image", "Labels", "HostConfig"), "the container")
    body["HostConfig"] = _checked(body["HostConfig"], host, ("CapDrop", "SecurityOpt", *LIMITS), "HostConfig")
    return body


def volume_body(text: bytes, policy: Policy) -> dict[str, Any]:
    """The checked body of `POST /volumes/create`. Driver options can mount any folder of the host."""
    checks: dict[str, Check] = {
        "Name": _is_own_name,
        "Driver": lambda driver: driver == "local",
        "DriverOpts": lambda options: options.keys() <= {"size"},
        "Labels": lambda labels: _are_own(labels, policy),
    }
    return _checked(_parse(text), checks, ("Name",), "the volume")


def network_body(text: bytes, policy: Policy) -> dict[str, Any]:
    """The checked body of `POST /networks/create`. The engine chooses the subnet: it could be that of a host's link."""
    checks: dict[str, Check] = {
        "Name": _is_own_name,
        "Driver": lambda driver: driver == "bridge",
        "Labels": lambda labels: _are_own(labels, policy),
        "Options": lambda options: all(NETWORK_OPTION.fullmatch(f"{name}={value}") for name, value in options.items()),
        **dict.fromkeys(("CheckDuplicate", "Internal"), lambda value: value is True),
    }
    return _checked(_parse(text), checks, ("Name", "Driver", "Labels"), "the network")


def connection_body(text: bytes) -> dict[str, Any]:
    """The checked body of `POST /networks/{name}/connect`."""
    checks: dict[str, Check] = {"Container": _is_name, "EndpointConfig": _is_endpoint}
    return _checked(_parse(text), checks, ("Container",), "the connection")


def label_filters(text: str, policy: Policy, *, names: bool = False) -> str:
    """The checked `filters` of a list or of events: only what has this installation's label, or names of sandboxes.

    Raises:
        Refused: they ask for more.
    """
    filters = _parse(text.encode() or b"{}")
    label = f"{INSTALLATION_LABEL}={policy.installation}"
    if not (_lists(filters, "label", label) or (names and _lists(filters, "name", "^aw-"))):
        raise Refused("filters do not name this installation")
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
        "SecurityOpt": lambda options: _are_confining(options, policy),
        "Runtime": lambda runtime: runtime in policy.runtimes,
        "NetworkMode": lambda mode: mode in ("default", "bridge", "none") or _is_own_name(mode),
        "IpcMode": lambda mode: mode in ("private", "none"),
        "CgroupnsMode": lambda mode: mode == "private",
        "LogConfig": _is_bounded_log,
        "StorageOpt": lambda options: options.keys() <= {"size"},
        "Ulimits": lambda limits: all(limit.keys() <= {"Name", "Soft", "Hard"} for limit in limits),
        **dict.fromkeys(("Init", "ReadonlyRootfs"), lambda value: value is True),
        **dict.fromkeys((*LIMITS, "ShmSize", "BlkioWeight"), _is_positive),
    }


def _checked(body: Any, checks: Mapping[str, Check], required: tuple[str, ...], place: str) -> dict[str, Any]:
    """The fields that are not empty, each of which has passed its check."""
    if not isinstance(body, dict):
        raise Refused(f"{place} is not an object")
    found = {name: value for name, value in body.items() if value not in EMPTY}
    for name, value in found.items():
        if name not in checks or not _passes(checks[name], value):
            raise Refused(f"{name} of {place} has a value that is not allowed")
    if missing := [name for name in required if name not in found]:
        raise Refused(f"{place} has no {missing[0]}")
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
        raise Refused("a body or filter is not JSON") from None


def _lists(filters: Any, key: str, value: str) -> bool:
    found = filters.get(key) if isinstance(filters, dict) else None
    return isinstance(found, list) and value in found


def _are_own(labels: Mapping[str, Any], policy: Policy) -> bool:
    return labels.get(INSTALLATION_LABEL) == policy.installation and all(map(_is_text, labels.values()))


def _are_confining(options: list[str], policy: Policy) -> bool:
    profiles = [option.removeprefix("seccomp=") for option in options if option.startswith("seccomp=")]
    others = {option for option in options if not option.startswith("seccomp=")}
    return others <= NO_NEW_PRIVILEGES and bool(others) and all(json.loads(text) in policy.seccomp for text in profiles)


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


def _is_own_network(config: dict[str, Any]) -> bool:
    endpoints = config["EndpointsConfig"]
    return (
        config.keys() == {"EndpointsConfig"}
        and all(map(_is_own_name, endpoints))
        and all(map(_is_endpoint, endpoints.values()))
    )


def _is_endpoint(endpoint: dict[str, Any] | None) -> bool:
    return endpoint is None or {key for key, value in endpoint.items() if value not in EMPTY} <= {
        "IPAMConfig",
        "Aliases",
    }


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
