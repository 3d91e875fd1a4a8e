"""`deploy/setup` and its scripts, on machines with missing parts."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.machine import PYTHON, Machine
from tests.waiting import eventually

NEEDS_ROOT = """
Packages are missing, and only root on Debian can install them here. Install them with
    apt-get update && apt-get install --no-install-recommends {packages}
and repeat the command.
"""
PRINT_SETTINGS = 'echo "$DOCKER_HOST, $AW_DOCKER_HOST, $AW_VAR_DIR, ${AW_CANVAS_DIR-unset}."'
AWAIT_END = 'until [ -e "$STATE/end" ]; do sleep 0.1; done'
INSTALL = "apt-get install -q -y --no-install-recommends -o Dpkg::Options::=--force-confold -o DPkg::Lock::Timeout=300"
# The first two calls of apt-get.
LOCKED = """
[ "$(grep -c ^apt-get "$STATE/calls")" -lt 3 ] || exit 0
echo "E: Could not get lock /var/lib/apt/lists/lock." >&2
exit 100
"""


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


class TestSetup:
    def test_prepared_machine_is_left_unchanged(self, machine: Machine) -> None:
        first = machine.run("setup")
        assert (first.status, first.complaint) == (0, "")
        assert first.said == "making the Python environment in .venv\n"
        second = machine.run("setup")
        assert (second.status, second.said, second.complaint) == (0, "", "")
        assert machine.calls("apt-get", "dockerd") == []
        assert len(machine.calls("uv")) == 2  # for the packages and for the project, in the first run

    def test_environment_of_another_python_is_separate(self, machine: Machine) -> None:
        assert machine.run("setup").status == 0
        machine.stub("python3.13", PYTHON.replace("3.11.2", "3.13.0"))
        place = "var/python/3.13"
        made = machine.run("setup", "unit", AW_PYTHON="python3.13", AW_ENVIRONMENT=place)
        assert made.said == f"making the Python environment in {place}\n"
        assert (machine.project / place / "bin" / "uv").exists()
        assert machine.run("setup", "unit").said == ""
        assert machine.run("setup", "unit", AW_PYTHON="python3.13", AW_ENVIRONMENT=place).said == ""

    def test_environment_is_made_again_with_another_interpreter_of_the_same_version(self, machine: Machine) -> None:
        assert machine.run("setup").status == 0
        made = machine.run("setup", BASE="/opt/python/bin/python3.11")
        assert made.said == "making the Python environment in .venv\n"
        assert len([call for call in machine.calls("python3") if "-m venv --clear" in call]) == 2

    @pytest.mark.parametrize(("venv_status", "chosen"), [("0", "/usr/bin/python3"), ("1", "/opt/python3")])
    def test_python_of_the_distribution_is_preferred_if_it_can_create_environments(
        self, machine: Machine, venv_status: str, chosen: str
    ) -> None:
        machine.stub("python3", PYTHON.replace("${BASE:-}", "/opt/python3").replace("${VENV_STATUS:-0}", "0"))
        system = PYTHON.replace("${BASE:-}", "/usr/bin/python3")
        machine.stub("python3", system, at=machine.elsewhere("/usr/bin/python3"))
        done = machine.run("setup", VENV_STATUS=venv_status)
        assert (done.status, done.complaint) == (0, "")
        assert (machine.project / ".venv" / "bin" / "base").read_text() == f"{chosen}\n"

    @pytest.mark.parametrize("named", ["/opt/missing/python3", "python3.10"])
    def test_named_python_is_not_replaced_by_another_one(self, machine: Machine, named: str) -> None:
        machine.stub("python3.10", "exit 1")
        done = machine.run("setup", AW_PYTHON=named)
        words = f"AW_PYTHON is {named}, which does not run as Python 3.11 or later."
        assert (done.status, done.complaint, done.entry) == (1, f"\n{words}\n", "a-newer-python-is-needed")
        assert not (machine.project / ".venv").exists()

    def test_packages_of_an_interrupted_setup_are_installed_again(self, machine: Machine) -> None:
        interrupts = machine.state / "interrupts"
        interrupts.touch()
        machine.stub("recorder", f'[ ! -e {interrupts} ] || [ "$1 $2" != "pip sync" ] || exit 130')
        assert machine.run("setup").status == 1
        interrupts.unlink()
        assert machine.run("setup").status == 0
        synced = [call for call in machine.calls("uv") if call.startswith("uv pip sync")]
        assert ["--reinstall" in call for call in synced] == [False, True]
        (machine.project / "requirements.lock").write_text("changed==1\n")
        assert machine.run("setup").status == 0
        assert "--reinstall" not in machine.calls("uv")[-2]

    @pytest.mark.parametrize(
        ("missing", "mode", "packages"),
        [
            (("git",), "", "git"),
            (("npm",), "page", "npm"),
            (("git", "npm"), "page", "git npm"),
        ],
    )
    def test_missing_package_without_root_is_named(
        self, machine: Machine, missing: tuple[str, ...], mode: str, packages: str
    ) -> None:
        machine.remove(*missing)
        done = machine.run("setup", *mode.split())
        assert (done.status, done.said, done.complaint) == (1, "", NEEDS_ROOT.format(packages=packages))
        assert done.entry == "packages-are-missing"
        assert machine.calls("apt-get", "uv") == []

    @pytest.mark.parametrize(("mode", "are_named"), [("test", True), ("page", False)])
    def test_engine_that_responds_does_not_replace_the_programs_of_the_tests(
        self, machine: Machine, mode: str, are_named: bool
    ) -> None:
        machine.remove("dockerd", "iptables", "npm")
        script = machine.deploy / "setup"
        script.write_text(script.read_text().replace(":/usr/sbin:/sbin", ""))
        words = machine.run("setup", mode).complaint.split()
        assert "npm" in words
        assert [name in words for name in ("docker.io", "iptables")] == [are_named] * 2

    def test_tests_obey_none_of_the_settings_of_the_service(self, machine: Machine) -> None:
        for name in ("engine", "canvas"):
            machine.stub(name, PRINT_SETTINGS, at=machine.deploy / name)
        settings = ("AW_DOCKER_HOST=unix:///service.sock", "AW_VAR_DIR=elsewhere", "AW_CANVAS_DIR=elsewhere")
        (machine.project / "var").mkdir()
        (machine.project / "var" / "env").write_text("\n".join(settings))
        done = machine.run("setup", "test", root=True, DOCKER_HOST="unix:///own.sock", AW_VAR_DIR="elsewhere")
        assert (done.status, done.complaint) == (0, "")
        assert done.said.count("unix:///own.sock, unix:///own.sock, var, .\n") == 2

    def test_missing_npm_does_not_matter_without_the_page(self, machine: Machine) -> None:
        machine.remove("npm")
        assert machine.run("setup").status == 0

    def test_missing_venv_module_without_root_is_named(self, machine: Machine) -> None:
        done = machine.run("setup", VENV_STATUS="1")
        assert (done.status, done.complaint) == (1, NEEDS_ROOT.format(packages="python3-venv"))

    def test_missing_package_is_installed_by_root(self, machine: Machine) -> None:
        machine.remove("git")
        done = machine.run("setup", root=True)
        assert (done.status, done.complaint) == (0, "")
        assert done.said.splitlines()[0] == "installing from Debian: git"
        assert machine.calls("apt-get") == ["apt-get update -q", f"{INSTALL} git"]

    def test_missing_apt_is_reported_like_missing_root(self, machine: Machine) -> None:
        machine.remove("git", "apt-get")
        done = machine.run("setup", root=True)
        assert (done.status, done.complaint) == (1, NEEDS_ROOT.format(packages="git"))

    def test_failing_pip_is_fatal(self, machine: Machine) -> None:
        machine.stub("recorder", "echo no network; exit 1")
        done = machine.run("setup")
        assert (done.status, done.complaint) == (1, "\npip could not install uv: see above\n")
        assert done.entry == "packages-could-not-be-installed"
        assert "no network" in done.said


class TestInstallPackages:
    def test_nothing_to_install_needs_no_root(self, machine: Machine) -> None:
        done = machine.run("install-packages")
        assert (done.status, done.said, done.complaint, machine.calls("apt-get")) == (0, "", "", [])

    @pytest.mark.parametrize(
        ("failing", "words"),
        [("update", "apt-get update failed: see above"), ("install", "apt-get could not install: npm git")],
    )
    def test_failing_apt_is_named(self, machine: Machine, failing: str, words: str) -> None:
        machine.stub("apt-get", f'[ "$1" != {failing} ] || {{ echo "E: no such mirror"; exit 100; }}')
        done = machine.run("install-packages", "npm", "git", root=True)
        assert (done.status, done.complaint) == (1, f"\n{words}\n")
        assert done.entry == "packages-could-not-be-installed"
        assert "E: no such mirror" in done.said
        assert len(machine.calls("apt-get")) == ["update", "install"].index(failing) + 1

    def test_lists_that_another_program_has_locked_are_awaited(self, machine: Machine) -> None:
        machine.stub("apt-get", LOCKED)
        machine.remove("sleep")
        machine.stub("sleep")
        assert machine.run("install-packages", "git", root=True).status == 0
        assert machine.calls("apt-get") == [*["apt-get update -q"] * 3, f"{INSTALL} git"]

    def test_lists_that_stay_locked_are_not_awaited_forever(self, machine: Machine) -> None:
        machine.stub("apt-get", LOCKED)
        script = machine.deploy / "install-packages"
        script.write_text(script.read_text().replace("LOCK_SECONDS=300", "LOCK_SECONDS=0"))
        done = machine.run("install-packages", "git", root=True)
        assert (done.status, done.complaint) == (1, "\napt-get update failed: see above\n")
        assert "Could not get lock" in done.said
        assert machine.calls("apt-get") == ["apt-get update -q"]

    def test_postgresql_gets_no_cluster_of_its_own_if_setup_installs_it(self, machine: Machine) -> None:
        file = machine.elsewhere("/etc/postgresql-common") / "createcluster.conf"
        assert machine.run("install-packages", "git", "haproxy", root=True).status == 0
        assert not file.exists()
        assert machine.run("install-packages", "git", "postgresql", root=True).status == 0
        assert file.read_text() == "create_main_cluster = false\n"

    def test_squid_unit_is_masked_if_setup_installs_squid(self, machine: Machine) -> None:
        unit = machine.elsewhere("/etc/systemd/system") / "squid.service"
        assert machine.run("install-packages", "postgresql", root=True).status == 0
        assert not unit.exists()
        assert machine.run("install-packages", "nftables", "squid", root=True).status == 0
        assert unit.readlink() == Path("/dev/null")


class TestEngine:
    def test_stopped_engine_without_root_is_reported_with_the_command(self, machine: Machine) -> None:
        machine.stop_engine()
        done = machine.run("setup")
        socket = machine.elsewhere("/var/run/docker.sock")
        assert (done.status, done.said, done.entry) == (1, "", "no-docker-engine-responds")
        assert done.complaint == (
            f"\nNo Docker Engine responds at {socket}, or alice may not use it. As root:\n"
            "    systemctl start docker           # or: dockerd\n"
            "    usermod -aG docker alice     # then log in again\n"
        )

    def test_stopped_remote_engine_is_not_started(self, machine: Machine) -> None:
        machine.stop_engine()
        done = machine.run("setup", root=True, AW_DOCKER_HOST="tcp://engine.example:2376")
        assert (done.status, machine.calls("dockerd", "systemctl")) == (1, [])
        assert done.complaint == (
            "\nNo Docker Engine responds at tcp://engine.example:2376. Start it, or unset AW_DOCKER_HOST and"
            " DOCKER_HOST.\n"
        )

    def test_stopped_engine_is_started_by_root(self, machine: Machine) -> None:
        machine.stop_engine()
        done = machine.run("engine", root=True)
        assert (done.status, done.complaint) == (0, "")
        assert done.said == "starting the Docker Engine\nthe Docker Engine responds\n"
        assert machine.calls("dockerd", "systemctl") == ["dockerd "]

    def test_stopped_engine_is_started_by_systemd_if_present(self, machine: Machine) -> None:
        machine.stop_engine()
        machine.elsewhere("/run/systemd/system").mkdir(parents=True)
        machine.stub("systemctl", 'touch "$STATE/engine"')
        assert machine.run("engine", root=True).status == 0
        assert machine.calls("dockerd", "systemctl") == ["systemctl start docker"]

    def test_engine_is_started_although_another_process_has_the_number_of_a_killed_one(self, machine: Machine) -> None:
        machine.stop_engine()
        limit_deadline(machine)
        file = machine.elsewhere("/var/run/docker.pid")
        file.write_text(str(os.getpid()))
        machine.stub("dockerd", f'[ ! -e {file} ] || exit 1; touch "$STATE/engine"')  # as Docker's own
        done = machine.run("engine", root=True)
        assert (done.status, done.said) == (0, "starting the Docker Engine\nthe Docker Engine responds\n")

    def test_engine_that_is_still_starting_is_not_started_twice(self, machine: Machine) -> None:
        machine.stop_engine()
        limit_deadline(machine)
        program = machine.root / "dockerd"
        shutil.copy(shutil.which("sleep") or "sleep", program)
        with subprocess.Popen([program, "60"]) as starting:
            machine.elsewhere("/var/run/docker.pid").write_text(str(starting.pid))
            done = machine.run("engine", root=True)
            starting.kill()
        assert (done.status, machine.calls("dockerd")) == (1, [])

    def test_log_of_an_engine_without_systemd_is_limited(self, machine: Machine) -> None:
        machine.stop_engine()
        machine.stub("dockerd", f'touch "$STATE/engine"; {AWAIT_END}; echo ended')
        script = machine.deploy / "limit-log"
        script.write_text(script.read_text().replace("PAUSE=60", "PAUSE=0.1"))
        log, text = machine.project / "var" / "log" / "dockerd.log", b"." * 11 * 1024 * 1024
        log.parent.mkdir(parents=True)
        log.write_bytes(text)
        try:
            assert machine.run("engine", root=True).status == 0
            eventually(lambda: log.stat().st_size == 0, deadline_seconds=30)
            assert log.with_name("dockerd.log.1").read_bytes() == text
        finally:
            (machine.state / "end").touch()
        eventually(lambda: log.read_text() == "ended\n", deadline_seconds=30)

    def test_engine_that_never_responds_is_quoted(self, machine: Machine) -> None:
        machine.stop_engine()
        machine.stub("dockerd", "echo cannot mount")
        limit_deadline(machine)
        (machine.project / "var" / "log").mkdir(parents=True)
        done = machine.run("engine", root=True)
        assert (done.status, done.said) == (1, "starting the Docker Engine\n")
        words = "The Docker Engine did not respond within 1 s. Its last lines:\ncannot mount"
        assert done.complaint == f"\n{words}\n"


def limit_deadline(machine: Machine) -> None:
    """Let the engine respond within a second."""
    script = machine.deploy / "engine"
    script.write_text(script.read_text().replace("DEADLINE=60", "DEADLINE=1"))
