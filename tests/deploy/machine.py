"""A machine for the scripts of deploy/: a copy of them, and a PATH with stubs."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.services.directories import REPOSITORY

# Tools with which the scripts only read and write files.
TOOLS = (
    *("awk", "bash", "cat", "chmod", "cp", "cut", "dirname", "find", "flock", "grep", "head", "ln", "mkdir", "mktemp"),
    *("numfmt", "realpath", "rm", "sed", "setsid", "sha256sum", "sleep", "sort", "tail", "tar", "tee", "timeout"),
    *("touch", "true", "xargs"),
)
# Paths of the real machine that the scripts write to or depend on.
ELSEWHERE = (
    *("/var/run", "/run/systemd/system", "/etc/postgresql-common", "/etc/systemd/system"),
    *("/usr/sbin/debootstrap", "/bin/busybox", "/usr/bin/python3"),
)
LOCK = "/tmp/aw-image-build.lock"
ID = """
case "$1" in
-u) echo "${STUB_UID:-1000}" ;;
-un) echo alice ;;
esac
"""
# The engine responds while $STATE/engine exists, and has an image while the image's file in $STATE/images exists.
DOCKER = """
image() { echo "$STATE/images/$(echo "$1" | tr / _)"; }
build() {
    [ -z "${BUILD_FAILS:-}" ] || exit 7
    while [ "$1" != --tag ]; do shift; done
    touch "$(image "$2")"
}
case "$1 $2" in
"version --format") [ -e "$STATE/engine" ] ;;
"image inspect") cat "$(image "${!#}")" ;;
"pull "*) [ -z "${PULL_HANGS:-}" ] || exec sleep 30; [ -n "${REGISTRY:-}" ] ;;
"import "*) cat >/dev/null ;;
"build "*) build "$@" ;;
esac
"""
PYTHON = """
case "$*" in
--version) echo "Python 3.11.2" ;;
*_base_executable*) echo "${BASE:-}" ;;
*"import ensurepip"*) exit "${VENV_STATUS:-0}" ;;
"-m venv"*) mkdir -p "${!#}/bin" && for name in pip python uv; do cp "$STUBS/recorder" "${!#}/bin/$name"; done
    echo "${BASE:-}" >"${!#}/bin/base" ;;
esac
"""
INERT = ("apt-get", "git", "iptables", "npm", "ss", "systemctl", "mountpoint")


@dataclass
class Machine:
    """A machine with everything installed and a running engine. Tests remove the parts that they are about."""

    root: Path

    def __post_init__(self) -> None:
        shutil.copytree(REPOSITORY / "deploy", self.deploy, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "requirements.lock"):
            shutil.copy(REPOSITORY / name, self.project)
        for folder in (self.bin, self.state / "images", self.elsewhere("/var/run"), self.elsewhere(LOCK).parent):
            folder.mkdir(parents=True)
        for script in self.scripts():
            self.redirect(script)
        for tool in (*TOOLS, "tr"):
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)
        for name in (*INERT, "recorder"):
            self.stub(name)
        self.stub("id", ID)
        self.stub("docker", DOCKER)
        self.stub("dockerd", 'echo "the engine speaks"; touch "$STATE/engine"')
        self.stub("python3", PYTHON)
        (self.state / "engine").touch()

    @property
    def project(self) -> Path:
        return self.root / "project"

    @property
    def deploy(self) -> Path:
        return self.project / "deploy"

    @property
    def bin(self) -> Path:
        return self.root / "bin"

    @property
    def state(self) -> Path:
        return self.root / "state"

    def scripts(self) -> list[Path]:
        files = [path for path in self.deploy.rglob("*") if path.is_file() and path.suffix in ("", ".sh")]
        return [path for path in files if path.read_bytes().startswith((b"#!/usr/bin/env bash", b"# shellcheck"))]

    def elsewhere(self, path: str) -> Path:
        """The replacement of a path of the real machine."""
        return self.root / "machine" / path.lstrip("/")

    def redirect(self, script: Path) -> None:
        text = script.read_text()
        for path in (*ELSEWHERE, LOCK):
            text = re.sub(rf"(?<!\w){path}", str(self.elsewhere(path)), text)
        script.write_text(text)

    def stub(self, name: str, body: str = "", *, at: Path | None = None) -> None:
        """Create a stub that records its call and then runs `body`."""
        path = at or self.bin / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#!/usr/bin/env bash\necho "${{0##*/}} $*" >>"$STATE/calls"\n{body}\n')
        path.chmod(0o755)

    def remove(self, *names: str) -> None:
        for name in names:
            (self.bin / name).unlink()

    def stop_engine(self) -> None:
        (self.state / "engine").unlink()

    def run(self, script: str, *arguments: str, root: bool = False, **variables: str) -> "Done":
        """Run one of the scripts of deploy/ on this machine."""
        environment = {
            "PATH": str(self.bin),
            "HOME": str(self.root),
            "STATE": str(self.state),
            "STUBS": str(self.bin),
            "STUB_UID": "0" if root else "1000",
            "SSL_CERT_FILE": os.devnull,
            "TMPDIR": str(self.root),
            **variables,
        }
        return Done(
            subprocess.run(
                [self.deploy / script, *arguments],
                env=environment,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        )

    def calls(self, *names: str) -> list[str]:
        """The recorded calls of these commands, in order."""
        file = self.state / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.split()[0] in names]


class Done:
    """The result of a script, without the seconds before each line."""

    def __init__(self, process: subprocess.CompletedProcess[str]) -> None:
        self.status = process.returncode
        self.said = re.sub(r"(?m)^\[ *\d+s\] ", "", process.stdout)
        # The error without its link to the troubleshooting page, and the entry that the link names.
        self.complaint, _, entry = process.stderr.partition("More: docs/operate/troubleshooting.md#")
        self.entry = entry.rstrip("\n")
