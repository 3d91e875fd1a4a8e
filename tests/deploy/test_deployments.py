"""The files for Compose, Swarm, systemd, nginx and Caddy: their own tools accept them."""

import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx
import pytest
import yaml  # type: ignore[import-untyped]

from shared import __version__
from tests.deploy.machine_programs import find_program
from tests.services import processes
from tests.services.authority import Authority
from tests.services.directories import REPOSITORY
from tests.services.ports import Port
from tests.waiting import eventually

DEPLOY = REPOSITORY / "deploy"
BIN = "/opt/agent-workspace/bin"
NGINX = """\
pid {folder}/nginx.pid;
error_log {folder}/errors.log;
events {{}}
http {{
    access_log {folder}/accesses.log;
    include {folder}/proxy.conf;
}}
"""


def check(*command: str | Path, **variables: str) -> str:
    """The output of a tool that must succeed."""
    environment = os.environ | variables
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("file", ["compose.yaml", "swarm/stack.yaml"])
def test_compose_reads_the_deployment(file: str) -> None:
    found = yaml.safe_load(check(find_program("docker-compose", "docker-compose"), "-f", DEPLOY / file, "config"))
    images = {service["image"] for service in found["services"].values()}
    assert f"agent-workspace/service:{__version__}" in images


@pytest.mark.parametrize("file", ["compose.yaml", "swarm/stack.yaml"])
def test_only_the_engine_filter_keeps_root_s_rights_and_the_engine_s_socket(file: str) -> None:
    services = yaml.safe_load((DEPLOY / file).read_text())["services"]
    own = {name: service for name, service in services.items() if "service" in service["image"]}
    rights = {name: service.get("cap_add") for name, service in own.items() if service.get("user")}
    # The egress proxy drops its privileges before it listens.
    assert rights == {"engine-filter": ["NET_ADMIN", "CHOWN"], "egress-proxy": ["SETUID", "SETGID"]}
    assert not [name for name, service in own.items() if service.get("cap_add") and name not in rights]
    assert {name for name, service in own.items() if "docker.sock" in str(service)} == {"engine-filter"}
    assert all(service["cap_drop"] == ["ALL"] and service["read_only"] for service in own.values())


@pytest.mark.parametrize("file", ["compose.yaml", "swarm/stack.yaml"])
def test_worker_measures_the_disk_of_a_volume(file: str) -> None:
    """Its container does not have the engine's data root, so the floor of free bytes would not hold."""
    worker = yaml.safe_load((DEPLOY / file).read_text())["services"]["worker"]
    volumes = [mount.split(":")[1] for mount in worker["volumes"] if isinstance(mount, str) and mount[0].isalpha()]
    assert worker["environment"]["AW_ENGINE_DATA_DIR"] in volumes


def test_changed_settings_reach_every_process_of_compose() -> None:
    """A process that keeps former secret keys or ports no longer works with the others."""
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    own = {name for name, service in services.items() if "service" in service["image"]}
    page = (REPOSITORY / "docs" / "operate" / "compose.md").read_text().replace("\\\n", "")
    [named] = re.findall(r"--force-recreate (.+)", page)
    assert set(named.split()) == own


def test_memory_folders_of_swarm_containers_are_writable_for_their_user() -> None:
    """Swarm's file sets no mode for a tmpfs, which therefore belongs to root and has the mode of the image's folder."""
    services = yaml.safe_load((DEPLOY / "swarm" / "stack.yaml").read_text())["services"].values()
    mounts = [mount for service in services for mount in service["volumes"] if isinstance(mount, dict)]
    targets = {mount["target"] for mount in mounts if mount["type"] == "tmpfs"} - {"/tmp"}
    image = (DEPLOY / "Dockerfile").read_text()
    assert targets
    assert [target for target in targets if f"-m 1777 {target} " not in image] == []


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    verify = find_program("systemd-analyze", "systemd")
    for unit in (DEPLOY / "systemd").iterdir():
        text = unit.read_text().replace(BIN, str(Path(sys.executable).parent))
        (tmp_path / unit.name.replace("@", "@1")).write_text(text)
    assert check(verify, "verify", *tmp_path.iterdir()) == ""
    broken = tmp_path / "broken.service"
    broken.write_text("[Service]\nExecStart=/nonexistent\nRestrat=always\n")
    done = subprocess.run([verify, "verify", broken], capture_output=True, text=True, check=False)
    assert "Restrat" in done.stderr


@pytest.mark.parametrize("unit", sorted((DEPLOY / "systemd").iterdir()), ids=lambda unit: unit.name)
def test_unit_is_restarted_without_limit(unit: Path) -> None:
    """By default, systemd leaves a unit down after five starts in 10 s, as while the database is away (decision 6)."""
    about, _, rest = unit.read_text().partition("[Service]")
    assert "StartLimitIntervalSec=0" in about.splitlines()
    assert "Restart=always" in rest.splitlines() or "Type=oneshot" in rest.splitlines()


def test_units_run_modules_and_commands_that_exist() -> None:
    texts = [unit.read_text() for unit in (DEPLOY / "systemd").iterdir()]
    modules = {found for text in texts for found in re.findall(r"-m ([\w.]+)", text)}
    assert {"deploy.door", "deploy.egress_proxy", "deploy.engine_filter", "deploy.service.health"} == modules
    files = [REPOSITORY / module.replace(".", "/") for module in modules]
    assert all(file.with_suffix(".py").exists() or (file / "__main__.py").exists() for file in files)


def write_nginx(folder: Path, *changes: tuple[str, str]) -> list[str]:
    """Write the configuration with these changes into a folder; return the command of nginx."""
    text = (DEPLOY / "proxy" / "nginx.conf").read_text()
    certificate, key = Authority(folder, "authority").issue("127.0.0.1")
    for name, file in (("fullchain.pem", certificate), ("privkey.pem", key)):
        text = text.replace(f"/etc/ssl/agents.example.com/{name}", str(file))
    for old, new in (("/var/log/nginx", str(folder)), *changes):
        text = text.replace(old, new)
    (folder / "proxy.conf").write_text(text)
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder))
    return [str(find_program("nginx", "nginx-light")), "-p", str(folder), "-c", str(folder / "nginx.conf")]


def test_nginx_accepts_its_configuration(tmp_path: Path) -> None:
    assert "test is successful" in check(*write_nginx(tmp_path), "-t")


# The URL of a websocket may have a sandbox's key.
PLANTED = "/sandbox/a/events?session_api_key=planted"


def is_listening(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 10):
        return True
    return False


def test_nginx_logs_no_key_of_a_sandbox(tmp_path: Path) -> None:
    """Nothing serves the requests here, which is an error that may be logged, too."""
    with ExitStack() as stack:
        plain, secure, client = (stack.enter_context(Port()) for _ in range(3))
        changes = [("127.0.0.1:3000;", "127.0.0.1:1;"), ("127.0.0.1:3002;", "127.0.0.1:1;")]
        for old, new in (("80", plain), ("443 ssl http2", secure), ("8443 ssl http2", client)):
            changes += [(f"    listen [::]:{old};\n", ""), (f"listen {old};", f"listen 127.0.0.1:{new} {old[4:]};")]
        process = processes.start([*write_nginx(tmp_path, *changes), "-g", "daemon off;"], tmp_path / "output.log")
        stack.callback(processes.stop, process)
        assert eventually(lambda: is_listening(plain))
        for origin in (f"http://127.0.0.1:{plain}", f"https://127.0.0.1:{secure}", f"https://127.0.0.1:{client}"):
            httpx.get(f"{origin}{PLANTED}", verify=False)
    logs = {file.name: file.read_text() for file in tmp_path.glob("*.log")}
    assert logs["agent-workspace.log"].count("/sandbox/a/events") == 3
    assert [name for name, text in logs.items() if "planted" in text] == []


@pytest.mark.nightly  # Caddy is 36 MB
def test_caddy_accepts_its_configuration(tmp_path: Path) -> None:
    caddy = find_program("caddy", "caddy")
    file = DEPLOY / "proxy" / "Caddyfile"
    assert "Valid configuration" in check(
        caddy, "validate", "--config", file, "--adapter", "caddyfile", HOME=str(tmp_path)
    )


@pytest.mark.nightly
def test_caddy_logs_no_key_of_a_sandbox(tmp_path: Path) -> None:
    with Port() as port, Port() as client:
        text = (DEPLOY / "proxy" / "Caddyfile").read_text().replace("{\n", "{\n\tadmin off\n", 1)
        for old, new in (("agents.example.com {", port), ("agents.example.com:8443 {", client)):
            text = text.replace(old, f"http://127.0.0.1:{new} {{")
        (tmp_path / "Caddyfile").write_text(text.replace("127.0.0.1:3000 {", "127.0.0.1:1 {"))
        options = ["run", "--config", str(tmp_path / "Caddyfile"), "--adapter", "caddyfile"]
        variables = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
        log = tmp_path / "output.log"
        process = processes.start([find_program("caddy", "caddy"), *options], log, environment=variables)
        try:
            assert eventually(lambda: is_listening(port))
            httpx.get(f"http://127.0.0.1:{port}{PLANTED}", headers={"X-Session-API-Key": "planted"})
        finally:
            processes.stop(process)
    assert "/sandbox/a/events" in log.read_text()
    assert "planted" not in log.read_text()
