"""Attacks on files and secrets: by what a sandbox contains, what its processes reveal, and links that it plants."""

from functools import partial

from tests.isolation.attack import Attack, at

attack = partial(Attack, "files and secrets")

INSIDE, HOST, PLAIN = "A", "host", "plain"
ROOTS = ["/"]
WORKSPACE = "/workspace"


def _find(name: str, files: list[str], *folders: str) -> Attack:
    return attack(
        name,
        at(INSIDE, "files.find_files", names=files, roots=ROOTS),
        at(HOST, "files.find_files", names=files, roots=[*folders]),
    )


SEARCHES = [
    _find("finds the engine's socket", ["docker.sock"], "$engine"),
    _find("finds the broker's socket", ["broker.sock"], "$broker"),
    _find("finds the database", ["$database"], "$database_folder"),
    attack(
        "finds sockets of other programs",
        at(INSIDE, "files.find_sockets", roots=["/run", "/var", "/tmp", WORKSPACE, "/dev"]),
        at(HOST, "files.find_sockets", roots=["$engine"]),
    ),
    attack(
        "finds the service's secret key in an environment",
        at(INSIDE, "files.needle_in_environment", needle="$secret_key"),
        at(HOST, "files.needle_in_environment", needle="$planted"),
    ),
    attack(
        "finds its session key in the environment of a process",
        at(INSIDE, "files.needle_in_environment", needle="$A_key"),
        at(HOST, "files.needle_in_environment", needle="$planted"),
    ),
    attack(
        "finds its owner's secret in the environment of a process",
        at(INSIDE, "files.needle_in_environment", needle="$alice_secret"),
        at(HOST, "files.needle_in_environment", needle="$planted"),
    ),
    attack(
        "finds a key in the arguments of a process",
        at(INSIDE, "files.needle_in_arguments", needle="$A_key"),
        at(HOST, "files.needle_in_arguments", needle="$planted"),
    ),
    attack(
        "reads its session key from the agent server's configuration",
        at(INSIDE, "files.read_file", path="$config", contains="$A_key"),
        at(
            HOST,
            "host.read_in_container",
            docker="$docker",
            container="$H_container",
            path="$config",
            contains="$H_key",
        ),
    ),
    attack(
        "reads its session key from the agent server's memory",
        at(INSIDE, "files.needle_digest_in_memory", digest="$A_digest", length="$A_length", prefix="$A_prefix"),
        at(
            HOST,
            "host.read_in_container",
            docker="$docker",
            container="$H_container",
            path="$config",
            contains="$H_key",
        ),
    ),
    attack(
        "reads the files of a sandbox of the same user",
        at(INSIDE, "files.read_file", path="/workspace/project/of-A2"),
        at("A2", "files.read_file", path="/workspace/project/of-A2"),
    ),
    attack(
        "reads the files of another user's sandbox",
        at(INSIDE, "files.read_file", path="/workspace/project/of-B"),
        at("B", "files.read_file", path="/workspace/project/of-B"),
    ),
    attack(
        "reads password hashes",
        at(INSIDE, "files.read_file", path="/etc/shadow"),
        at(PLAIN, "files.read_file", path="/etc/shadow"),
    ),
    attack(
        "lists root's files",
        at(INSIDE, "files.list_folder", path="/root"),
        at(PLAIN, "files.list_folder", path="/root"),
    ),
]


def _write(name: str, path: str) -> Attack:
    return attack(f"writes {name}", at(INSIDE, "files.write_file", path=path), at(PLAIN, "files.write_file", path=path))


WRITES = [
    _write("into the folder of programs", "/usr/bin"),
    _write("into the folder of settings", "/etc"),
    _write("the list of users", "/etc/passwd"),
    _write("the names of hosts", "/etc/hosts"),
    _write("the names of resolvers", "/etc/resolv.conf"),
    _write("into the agent server's packages", "/opt/agent-server/lib/python3.13/site-packages"),
    _write("the agent server's program", "/opt/agent-server/bin/agent-server"),
    _write("a program of the system", "/usr/bin/less"),
    _write("the list of trusted authorities", "/etc/ssl/certs/ca-certificates.crt"),
    _write("into the root folder", "/"),
    _write("into the folder of logs", "/var/log"),
    _write("into the agent server's folder", "/opt/agent-server"),
    attack(
        "writes the agent server's configuration",
        at(INSIDE, "files.write_file", path="$config"),
        at(PLAIN, "files.write_file", path="/etc"),
    ),
    attack(
        "links a file of root into its own folder",
        at(INSIDE, "files.hard_link", source="/etc/passwd", path="/home/agent/link"),
        at(PLAIN, "files.hard_link", source="/etc/passwd", path="/etc/link"),
    ),
    attack(
        "writes a line into its container's log",
        at(INSIDE, "files.write_into_process_1", text="forged"),
        at(PLAIN, "files.write_into_process_1", text="forged"),
    ),
]


def _link(name: str, target: str, contains: str) -> Attack:
    """A link in the sandbox's files, followed by a request of its owner; the control is a file that exists."""
    path = f"planted-{abs(hash(target)) % 10_000}"
    url = "$api/api/v1/app-conversations/$A_conversation/file?file_path="
    headers = {"Authorization": "Bearer $alice_key"}
    return attack(
        name,
        at(
            INSIDE,
            "files.plant_link",
            at(HOST, "http.request", url=f"{url}/workspace/project/{path}", headers=headers, contains=contains),
            path=f"/workspace/project/{path}",
            target=target,
        ),
        at(HOST, "http.request", url=f"{url}/workspace/project/of-A", headers=headers, contains="of-A"),
    )


LINKS = [
    _link("makes the API follow a link to a file of the node", "$database_folder/$database", "SQLite"),
    _link("makes the API follow a link to the service's environment", "/proc/$api_pid/environ", "AW_"),
    _link("makes the API read a device without an end", "/dev/zero", ""),
]
ATTACKS = [*SEARCHES, *WRITES, *LINKS]
