"""`deploy/image/build`: the Debian that images are built from, and the error without one."""

import os
from pathlib import Path

import pytest

from tests.deploy.machine import LOCK, Done, Machine

DEBOOTSTRAP = "/usr/sbin/debootstrap"
# The part of debootstrap's output that the script reads.
DEBIAN = """
mkdir -p "$3/etc/apt"
echo "deb http://mirror.example/debian trixie main" >"$3/etc/apt/sources.list"
"""
UNREACHABLE = "no registry is reachable: building Debian with debootstrap instead\n"
PULLED, MADE = "debian:trixie-slim", "agent-workspace/debian:trixie"


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    machine.stub("debootstrap", DEBIAN, at=machine.elsewhere(DEBOOTSTRAP))
    return machine


def build(machine: Machine, image: str = "base", *, root: bool = True, **variables: str) -> Done:
    return machine.run("image/build", image, root=root, **variables)


def bases(machine: Machine) -> list[str]:
    """The base of each image that was built."""
    found = [call.split("DEBIAN=")[1].split()[0] for call in machine.calls("docker") if "DEBIAN=" in call]
    assert len(found) == len([call for call in machine.calls("docker") if call.startswith("docker build")])
    return found


def test_debian_comes_from_a_reachable_registry(machine: Machine) -> None:
    done = build(machine, root=False, REGISTRY="1")
    assert (done.status, done.complaint) == (0, "")
    assert done.said.startswith(f"pulling {PULLED}\nbuilding agent-workspace/base:trixie\n")
    assert (bases(machine), machine.calls("debootstrap")) == ([PULLED], [])


@pytest.mark.parametrize("variables", [{}, {"PULL_HANGS": "1", "AW_PULL_DEADLINE": "0.5"}])
def test_unreachable_registry_leads_to_debootstrap(machine: Machine, variables: dict[str, str]) -> None:
    mirror = {"AW_DEBIAN_MIRROR": "http://mirror.example/debian"}
    done = machine.run("image/build", "base", root=True, **mirror, **variables)
    assert (done.status, done.complaint) == (0, "")
    assert done.said.startswith(f"pulling {PULLED}\n{UNREACHABLE}importing it into the engine\nbuilding ")
    [call] = machine.calls("debootstrap")
    assert call.startswith("debootstrap --variant=minbase trixie ")
    assert call.endswith("/root http://mirror.example/debian")
    assert f"docker import - {MADE}" in machine.calls("docker")
    assert bases(machine) == [MADE]


def test_stopped_engine_is_named_before_anything_is_built(machine: Machine) -> None:
    machine.stop_engine()
    address = "unix:///run/user/1000/docker.sock"
    done = build(machine, AW_DOCKER_HOST=address)
    assert (done.status, done.said, done.entry) == (1, "", "no-docker-engine-responds")
    assert done.complaint == f"\nNo Docker Engine responds at {address}, or alice may not use it.\n"
    assert machine.calls("debootstrap", "apt-get") == []


def test_existing_debian_is_reused(machine: Machine) -> None:
    (machine.state / "images" / MADE.replace("/", "_")).touch()
    assert build(machine, root=False).status == 0
    assert (bases(machine), machine.calls("debootstrap")) == ([MADE], [])


def test_unreachable_registry_without_root_names_the_fix(machine: Machine) -> None:
    done = build(machine, root=False)
    assert (done.status, done.said) == (1, f"pulling {PULLED}\n{UNREACHABLE}")
    words = (
        f"Only root can build Debian with debootstrap. Alternatively, pull {PULLED}, or set AW_DEBIAN_IMAGE to another"
        " image."
    )
    assert done.complaint == f"\n{words}\n"


def test_failing_debootstrap_names_its_mirror(machine: Machine) -> None:
    machine.stub("debootstrap", "echo E: no route; exit 1", at=machine.elsewhere(DEBOOTSTRAP))
    done = build(machine)
    assert (done.status, "E: no route" in done.said, bases(machine)) == (1, True, [])
    words = "debootstrap failed; check that its mirror is reachable, or set AW_DEBIAN_MIRROR to another one"
    assert done.complaint == f"\n{words}\n"


def test_missing_debootstrap_is_installed(machine: Machine) -> None:
    place = machine.elsewhere(DEBOOTSTRAP)
    place.rename(place.with_name("kept"))
    machine.stub("apt-get", f'[ "$1" = update ] || cp "{place.with_name("kept")}" "{place}"')
    assert build(machine).status == 0
    assert machine.calls("apt-get")[1].endswith(" debootstrap")
    assert bases(machine) == [MADE]


def test_missing_debootstrap_without_apt_is_named(machine: Machine) -> None:
    machine.elsewhere(DEBOOTSTRAP).unlink()
    machine.remove("apt-get")
    done = build(machine)
    assert done.status == 1
    assert "apt-get install --no-install-recommends debootstrap\n" in done.complaint


def test_unknown_image_is_rejected(machine: Machine) -> None:
    done = build(machine, "sandbux")
    words = "no image sandbux; the images are: base, sandbox, service, tiny, clients, next"
    assert (done.status, done.complaint) == (1, f"\n{words}\n")
    assert [call for call in machine.calls("docker") if not call.startswith("docker version")] == []


def test_failing_build_is_named(machine: Machine) -> None:
    done = build(machine, REGISTRY="1", BUILD_FAILS="1")
    assert (done.status, done.complaint) == (1, "\nbuilding agent-workspace/base:trixie failed: see above\n")
    assert done.entry == "building-the-image-failed"


def test_concurrent_builds_run_one_at_a_time(machine: Machine) -> None:
    machine.remove("flock")
    machine.stub("flock", '[ "$1" != --nonblock ]')
    done = build(machine, root=False, REGISTRY="1")
    assert (done.status, done.complaint) == (0, "")
    assert done.said.startswith("waiting for another build of images on this machine\n")
    assert machine.calls("flock") == ["flock --nonblock 9", "flock 9"]


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_lock_of_another_kind_stops_the_build_with_an_error(machine: Machine, kind: str) -> None:
    """Another user of the machine can create a pipe in place of the lock, and opening a pipe can block forever."""
    lock = machine.elsewhere(LOCK)
    if kind == "pipe":
        os.mkfifo(lock)
    else:
        lock.symlink_to("another")
    done = build(machine, REGISTRY="1")
    assert (done.status, "is no file" in done.complaint) == (1, True)
