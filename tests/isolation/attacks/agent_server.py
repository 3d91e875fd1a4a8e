"""Attacks on the agent server by programs of the same sandbox, which could then send requests in its name."""

from functools import partial
from typing import Any

from tests.isolation.attack import Attack, at

attack = partial(Attack, "agent server")

INSIDE, HOST = "A", "host"


def _process(name: str, function: str, /, **arguments: Any) -> Attack:
    """An attack on the agent server's process. The control attacks the API process, as root."""
    return attack(name, at(INSIDE, function, **arguments), at(HOST, function, process="$api_pid", **arguments))


def _port(name: str, address: str) -> Attack:
    return attack(
        name,
        at(INSIDE, "processes.share_port", port=8000, address=address),
        at(INSIDE, "processes.share_port", port=8077, address=address),
    )


ATTACKS = [
    attack("attaches a debugger to the agent server", at(INSIDE, "processes.seize"), at(HOST, "processes.seize_child")),
    attack(
        "attaches a debugger to the first process",
        at(INSIDE, "processes.seize", process="1"),
        at(HOST, "processes.seize_child"),
    ),
    _process("reads the agent server's memory by a system call", "processes.read_by_call"),
    _process("copies a file descriptor of the agent server", "processes.steal_descriptor"),
    _process("opens the agent server's memory", "files.open_memory", flags="r"),
    _process("opens the agent server's memory for writing", "files.open_memory", flags="w"),
    attack(
        "opens the first process's memory for writing",
        at(INSIDE, "files.open_memory", flags="w", process="1"),
        at(HOST, "files.open_memory", flags="w", process="$api_pid"),
    ),
    _process("reads the agent server's environment", "files.read_of_server", name="environ"),
    _process("reads the agent server's memory map", "files.read_of_server", name="maps"),
    _process("reads the agent server's auxiliary vector", "files.read_of_server", name="auxv"),
    _process("lists open files of the agent server", "files.list_descriptors"),
    _port("listens on the agent server's port at the sandbox's address", "$A_ip"),
    _port("listens on the agent server's port at the loopback address", "127.0.0.1"),
    _port("listens on the agent server's port at all addresses", "0.0.0.0"),
    attack(
        "calls the agent server without a key",
        at(INSIDE, "http.request", url="http://127.0.0.1:8000/api/conversations/count"),
        at(
            INSIDE,
            "http.request",
            url="http://127.0.0.1:8000/api/conversations/count",
            headers={"X-Session-API-Key": "$A_key"},
        ),
    ),
    attack(
        "calls the agent server with a neighbour's key",
        at(
            INSIDE,
            "http.request",
            url="http://127.0.0.1:8000/api/conversations/count",
            headers={"X-Session-API-Key": "$B_key"},
        ),
        at(
            INSIDE,
            "http.request",
            url="http://127.0.0.1:8000/api/conversations/count",
            headers={"X-Session-API-Key": "$A_key"},
        ),
    ),
    attack(
        "sets its own keys at the agent server by an init request",
        at(
            INSIDE,
            "http.request",
            url="http://127.0.0.1:8000/api/init",
            method="POST",
            headers={"Content-Type": "application/json", "X-Init-API-Key": "x"},
            body='{"session_api_keys": ["x"]}',
        ),
        at(INSIDE, "http.request", url="http://127.0.0.1:8000/health"),
    ),
    attack(
        "lets a web page of another origin use the agent server",
        at(
            INSIDE,
            "http.shows_header",
            url="http://127.0.0.1:8000/health",
            header="Access-Control-Allow-Origin",
            headers={"Origin": "https://elsewhere.example"},
        ),
        at(INSIDE, "http.shows_header", url="http://127.0.0.1:8000/health", header="Content-Type"),
    ),
    attack(
        "lets a web page of this machine use the agent server",
        at(
            INSIDE,
            "http.shows_header",
            url="http://127.0.0.1:8000/health",
            header="Access-Control-Allow-Origin",
            headers={"Origin": "http://localhost:9999"},
        ),
        at(INSIDE, "http.shows_header", url="http://127.0.0.1:8000/health", header="Content-Type"),
    ),
]
