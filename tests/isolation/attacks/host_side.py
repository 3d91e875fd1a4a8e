"""Attacks on the service from its machine: by another user's programs, and by searches for traces of keys."""

from functools import partial

from tests.isolation.attack import Attack, at

attack = partial(Attack, "host")

OTHER, HOST = "other user", "host"


def _same(name: str, function: str, /, **arguments: object) -> Attack:
    """An attack by another user. The control is the same action as root."""
    return attack(name, at(OTHER, function, **arguments), at(HOST, function, **arguments))


FILES = [
    _same("another user lists the service's folder", "files.list_folder", path="$var"),
    _same("another user reads the metrics' key", "files.read_file", path="$var/metrics.key"),
    _same("another user reads the database", "files.read_file", path="$database_folder/$database"),
    _same("another user writes the database", "files.write_file", path="$database_folder/$database"),
    _same("another user reads the service's logs", "files.read_file", path="$var/api.log"),
    _same("another user connects to the broker", "host.connect_unix", path="$broker/broker.sock"),
    _same("another user connects to the engine", "host.connect_unix", path="$engine/docker.sock"),
    _same("another user reads the environment of the API", "files.read_of_server", name="environ", process="$api_pid"),
    _same("another user reads the memory of the API", "files.open_memory", flags="r", process="$api_pid"),
    _same("another user reads the memory of the worker", "files.open_memory", flags="r", process="$worker_pid"),
    _same("another user copies a file descriptor of the API", "processes.steal_descriptor", process="$api_pid"),
    _same("another user attaches a debugger to the API", "processes.seize", process="$api_pid"),
    _same("another user reads the volume of a sandbox", "files.list_folder", path="$engine/data"),
    attack(
        "another user finds a key in the arguments of a process",
        at(OTHER, "files.needle_in_arguments", needle="$alice_key"),
        at(OTHER, "files.needle_in_arguments", needle="$planted"),
    ),
    attack(
        "another user finds a session key in the arguments of a process",
        at(OTHER, "files.needle_in_arguments", needle="$A_key"),
        at(OTHER, "files.needle_in_arguments", needle="$planted"),
    ),
    _same("another user reaches an agent server", "network.speaks_http", host="$A_ip", port=8000),
    attack(
        "another user reads metrics without a key",
        at(OTHER, "http.request", url="$api/metrics"),
        at(HOST, "http.request", url="$api/metrics", headers={"Authorization": "Bearer $metrics_key"}),
    ),
]


def _shown(name: str, needle: str, container: str = "$A_container") -> Attack:
    return attack(
        f"the engine shows {name}",
        at(HOST, "host.inspection_shows", docker="$docker", container=container, needle=needle),
        at(HOST, "host.inspection_shows", docker="$docker", container=container, needle="$A_id"),
    )


def _logged(name: str, needle: str) -> Attack:
    return attack(
        f"the container's log shows {name}",
        at(HOST, "host.log_shows", docker="$docker", container="$A_container", needle=needle),
        at(HOST, "host.log_shows", docker="$docker", container="$A_container", needle="INFO"),
    )


def _stored(name: str, folder: str, suffix: str, needle: str, control: str) -> Attack:
    return attack(
        name,
        at(HOST, "host.files_show", folder=folder, suffix=suffix, needle=needle),
        at(HOST, "host.files_show", folder=folder, suffix=suffix, needle=control),
    )


DATABASE, LOGS = ("$database_folder", ""), ("$var", ".log")
TRACES = [
    _shown("a session key", "$A_key"),
    _shown("its owner's API key", "$alice_key"),
    _shown("its owner's secret", "$alice_secret"),
    _logged("a session key", "$A_key"),
    _logged("its owner's secret", "$alice_secret"),
    _stored("the database has a secret in clear", *DATABASE, "$alice_secret", "ALICE_SECRET"),
    _stored("the database has a session key in clear", *DATABASE, "$A_key", "$A_id"),
    _stored("the database has an API key in clear", *DATABASE, "$alice_key", "alice"),
    _stored("the service's logs have a secret", *LOGS, "$alice_secret", "$A_id"),
    _stored("the service's logs have a session key", *LOGS, "$A_key", "$A_id"),
    _stored("the service's logs have an API key", *LOGS, "$alice_key", "$A_id"),
    _stored("the service's logs have a login", *LOGS, "$cookie", "$A_id"),
]
ATTACKS = [*FILES, *TRACES]
