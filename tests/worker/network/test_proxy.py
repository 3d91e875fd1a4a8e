"""The files with which the egress proxy identifies sandboxes, and the variables with which programs find the proxy."""

import io
import os
import socket
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.egress_proxy import configuration, decisions
from deploy.egress_proxy.decisions import matches
from shared.models import Node, Sandbox, SandboxSpec
from shared.nodes import model_servers
from shared.sandboxes import specs
from shared.states import Desired, Reason, Status
from tests.factories import NODE_ID, ApiUser
from tests.fakes.engine import IMAGE
from tests.fakes.firewall import FakeFirewall
from tests.worker.network.testbed import NetworkTestbed
from tests.worker.sandboxes.reconciler.sandboxes import mark_due
from tests.worker.scenarios import row, running, set_desired, start
from worker.engine.protocol import ContainerState
from worker.loops.heartbeat import send_heartbeat
from worker.network.firewall import FirewallError
from worker.network.proxy import MAX_SILENT, PROXY_LABEL, EgressProxy
from worker.sandboxes.container_spec import container_name
from worker.sandboxes.reconciler import reconcile
from worker.settings import WorkerSettings

NAMES = "10.1.0.0/16,pypi.org,*.pypi.org:8443"
TOLD = ["pypi.org", "*.pypi.org:8443", "10.1.0.0/16"]
PROXY = "http://10.213.0.1:3003"


def set_egress(testbed: NetworkTestbed, egress: str) -> None:
    with testbed.context.database.transaction() as session:
        specs.change(session, IMAGE, {"egress": egress})
    testbed.isolation.refresh()


def proxy_files(testbed: NetworkTestbed) -> dict[str, list[str]]:
    """The proxy's files: the names that each sandbox's address may reach."""
    folder = testbed.isolation._context.shared.egress_folder
    return {path.name: path.read_text().splitlines() for path in folder.iterdir()} if folder.exists() else {}


def environment(testbed: NetworkTestbed, sandbox_id: str) -> dict[str, str]:
    return testbed.engine.containers[container_name(sandbox_id)].request.env


def test_programs_use_the_proxy_and_it_knows_their_sandbox(testbed: NetworkTestbed, user: ApiUser) -> None:
    with testbed.context.database.transaction() as session:
        model_servers.allow(session, "192.168.1.20:8000")
    set_egress(testbed, NAMES)
    sandbox_id = running(testbed.context, user)
    address, found = testbed.address(sandbox_id), environment(testbed, sandbox_id)
    assert {found[name] for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy")} == {PROXY}
    direct = "localhost,127.0.0.1,host.docker.internal,10.213.0.1,192.168.1.20,10.1.0.0/16"
    assert (found["NO_PROXY"], found["no_proxy"]) == (direct, direct)
    assert proxy_files(testbed) == {address: TOLD}
    assert testbed.rules.models == {f"{address} . 10.213.0.1 . 3003"}
    assert not testbed.rules.open
    with testbed.context.database.reading() as session:
        assert session.get_one(SandboxSpec, IMAGE).revision == 2, "warm sandboxes without variables are removed"

    set_desired(testbed.context, sandbox_id, Desired.STOPPED)
    reconcile(testbed.context, sandbox_id)
    assert (proxy_files(testbed), testbed.rules.models) == ({}, frozenset())


@pytest.mark.parametrize(("egress", "after"), [("open", ["*"]), ("10.2.0.0/16", ["10.2.0.0/16"]), ("none", None)])
def test_change_reaches_running_sandboxes(
    testbed: NetworkTestbed, user: ApiUser, egress: str, after: list[str] | None
) -> None:
    """Running programs keep using the proxy, even for addresses that they could reach without it."""
    set_egress(testbed, NAMES)
    address = testbed.address(running(testbed.context, user))
    set_egress(testbed, egress)
    assert proxy_files(testbed) == ({address: after} if after else {})
    assert testbed.rules.models == ({f"{address} . 10.213.0.1 . 3003"} if after else set())


def test_sandbox_of_an_earlier_version_gets_the_variables_after_a_stop(testbed: NetworkTestbed, user: ApiUser) -> None:
    testbed.isolation.refresh()
    sandbox_id = running(testbed.context, user)
    assert (proxy_files(testbed), "HTTP_PROXY" in environment(testbed, sandbox_id)) == ({}, False)
    set_egress(testbed, NAMES)
    assert proxy_files(testbed) == {testbed.address(sandbox_id): TOLD}, "the sandbox may use the proxy immediately"
    for before, is_told in ((Desired.PAUSED, False), (Desired.STOPPED, True)):
        for desired in (before, Desired.RUNNING):
            set_desired(testbed.context, sandbox_id, desired)
            reconcile(testbed.context, sandbox_id)
        assert ("HTTP_PROXY" in environment(testbed, sandbox_id)) == is_told
        assert row(testbed.context, Sandbox, sandbox_id).status == Desired.RUNNING
    assert PROXY_LABEL in testbed.engine.containers[container_name(sandbox_id)].request.labels


def test_only_sandboxes_with_names_wait_while_the_proxy_is_away(testbed: NetworkTestbed, user: ApiUser) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        folder, port = testbed.isolation._context.shared.egress_folder, server.getsockname()[1]
        listening = EgressProxy(folder, "127.0.0.1", port, testbed.firewall)
        testbed.isolation._context = replace(testbed.isolation._context, proxy=listening)
        for _ in range(MAX_SILENT):
            set_egress(testbed, NAMES)
        running(testbed.context, user)
        for _ in range(MAX_SILENT):
            testbed.isolation.refresh()
    testbed.isolation.refresh()
    running(testbed.context, user)  # the proxy may be starting
    testbed.isolation.refresh()
    waiting = start(testbed.context, user)
    reconcile(testbed.context, waiting)
    found = row(testbed.context, Sandbox, waiting)
    assert (found.status, found.reason) == (Status.STARTING, Reason.ENGINE_ERROR)
    assert "nothing listens on 127.0.0.1" in str(found.detail)
    assert testbed.isolation.check() is None, "the node accepts other sandboxes"
    send_heartbeat(testbed.context)
    assert "nothing listens on 127.0.0.1" in str(row(testbed.context, Node, NODE_ID).impaired_reason)
    with testbed.context.database.transaction() as session:
        specs.change(session, IMAGE, {"egress": "open"})
    running(testbed.context, user)


def test_address_of_an_exited_sandbox_is_the_next_one_s(testbed: NetworkTestbed, user: ApiUser) -> None:
    set_egress(testbed, NAMES)
    former = running(testbed.context, user)
    address = testbed.address(former)
    testbed.engine.containers[container_name(former)].state = ContainerState.EXITED
    other = running(testbed.context, user)
    testbed.engine.containers[container_name(other)].address = address
    admitted = row(testbed.context, Sandbox, other)
    with testbed.context.database.transaction() as session:
        specs.change(session, IMAGE, {"egress": "b.org"})
    testbed.isolation.admit(admitted, testbed.engine.observe(container_name(other)))
    before = (proxy_files(testbed)[address], testbed.rules.of(frozenset({address})))
    with testbed.context.database.transaction() as session:
        specs.change(session, IMAGE, {"egress": "none"})
    testbed.isolation.renew(row(testbed.context, Sandbox, former))
    testbed.isolation.revoke(row(testbed.context, Sandbox, former), testbed.engine.observe(container_name(former)))
    assert (proxy_files(testbed)[address], testbed.rules.of(frozenset({address}))) == before


def test_sandbox_that_exits_leaves_no_access(testbed: NetworkTestbed, user: ApiUser) -> None:
    set_egress(testbed, NAMES)
    sandbox_id = running(testbed.context, user)
    testbed.engine.containers[container_name(sandbox_id)].state = ContainerState.EXITED
    mark_due(testbed.context, sandbox_id)
    reconcile(testbed.context, sandbox_id)
    assert row(testbed.context, Sandbox, sandbox_id).status == Status.ERROR
    assert (proxy_files(testbed), testbed.rules.sandboxes) == ({}, frozenset())


def test_folder_that_can_not_be_written_closes_the_node(testbed: NetworkTestbed, user: ApiUser) -> None:
    set_egress(testbed, NAMES)
    running(testbed.context, user)
    folder = testbed.isolation._context.shared.egress_folder
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    folder.write_text("no folder")
    testbed.isolation.refresh()
    assert "can't be written" in str(testbed.isolation.check())


def test_files_are_readable_to_the_proxy_and_whole(tmp_path: Path) -> None:
    proxy = EgressProxy(tmp_path / "run" / "10.9.0.1", "127.0.0.1", 1, FakeFirewall())
    before = os.umask(0o077)
    try:
        proxy.allow("10.9.0.2", ("a.org", "b.org"))
    finally:
        os.umask(before)
    [file] = (tmp_path / "run" / "10.9.0.1").iterdir()
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o644, 0o755)
    inode = file.stat().st_ino
    proxy.allow("10.9.0.2", ("a.org", "b.org"))
    assert file.stat().st_ino == inode, "it was not written again"
    proxy.compare(proxy.list_addresses(), {"10.9.0.3": ("c.org",)}, kept=["10.9.0.2"])
    assert {each.name for each in file.parent.iterdir()} == {"10.9.0.2", "10.9.0.3"}
    proxy.compare(proxy.list_addresses(), {}, kept=[])
    assert not list(file.parent.iterdir())
    file.mkdir()
    with pytest.raises(FirewallError, match="can't be written"):
        proxy.allow("10.9.0.2", ())


def test_all_sandboxes_of_a_node_together_leave_the_proxy_descriptors() -> None:
    """Each connection of a sandbox may need another one to a host. One user's sandboxes must not block other users."""
    most = 2 * configuration.PER_SANDBOX * WorkerSettings().node_capacity
    assert most < 0.9 * configuration.MAX_DESCRIPTORS
    assert f"max_filedescriptors {configuration.MAX_DESCRIPTORS}\n" in configuration.write(
        configuration.ProxyParameters("10.9.0.1", 3003, "decisions")
    )


def test_unknown_file_is_removed_without_closing_the_node(tmp_path: Path) -> None:
    firewall = FakeFirewall()
    (tmp_path / "notes").write_text("of an operator\n")
    assert not EgressProxy(tmp_path, "10.9.0.1", 3003, firewall).list_addresses()
    assert (list(tmp_path.iterdir()), firewall.disconnected) == ([], [])


@pytest.mark.parametrize(
    ("former", "found", "is_closed"),
    [
        (None, ("a.org",), False),
        (("a.org",), ("a.org", "b.org"), False),
        (("a.org",), ("*",), False),
        (("a.org", "b.org"), ("a.org",), True),
        (("*",), ("a.org",), True),
        (("a.org",), (), True),
        # The worker that should have closed them died first.
        ((), ("a.org",), True),
        ((), (), True),
    ],
)
def test_open_connections_are_closed_before_access_is_reduced(
    tmp_path: Path, former: tuple[str, ...] | None, found: tuple[str, ...], is_closed: bool
) -> None:
    firewall, file = FakeFirewall(), tmp_path / "10.9.0.2"
    proxy = EgressProxy(tmp_path, "10.9.0.1", 3003, firewall)
    if former is not None:
        file.write_text("".join(f"{each}\n" for each in former))
    firewall.problem = "it fails"
    if is_closed:
        with pytest.raises(FirewallError):
            proxy.allow("10.9.0.2", found)
        assert file.read_text() == "", "no address is reached during the change"
    firewall.problem = None
    proxy.allow("10.9.0.2", found)
    assert firewall.disconnected == ["10.9.0.2 . 10.9.0.1 . 3003"] * is_closed
    assert (tuple(file.read_text().split()) if file.exists() else ()) == found


@pytest.mark.parametrize(
    ("target", "host", "port", "is_allowed"),
    [
        ("a.org", "a.org", "443", True),
        ("a.org", "a.org", "8443", False),
        ("a.org", "b.a.org", "443", False),
        ("a.org:8443", "a.org", "8443", True),
        ("a.org:8443", "a.org", "443", False),
        ("*.a.org", "c.b.a.org", "80", True),
        ("*.a.org", "a.org", "80", False),
        ("*.a.org", ".a.org", "80", False),
        ("*.a.org", "ba.org", "80", False),
        ("10.1.0.0/16", "10.1.2.3", "443", True),
        ("10.1.0.0/16", "10.2.2.3", "443", False),
        ("10.1.0.0/16", "10.1", "443", False),
        ("10.1.0.0/16", "a.org", "443", False),
        ("*", "a.org", "443", True),
        ("*", "a.org", "22", False),
    ],
)
def test_host_and_port_are_matched(target: str, host: str, port: str, is_allowed: bool) -> None:
    assert matches(target, host, port, ("80", "443")) is is_allowed


def test_arbitrary_bytes_get_a_reply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "10.9.0.2").write_text("*\n")
    questions = {
        b"1 http://a.org/\xff 10.9.0.2 a.org 80": "yes",
        b"2 http://a.org/ 10.9.0.2 %61.org 80": "no",
        b"3 http://a.org/ 10.9.0.2 \xff.org 80": "no",
        b"4 http://a.org/ 10.9.0.2 a.org\xc2\xa0b.org 80": "no",
        b"5 http://a.org/ 10.9.0.3 10.9.0.2 a.org 80": "no",
        b"6 10.9.0.2 a.org 80": "no",
        b"7 http://a.org/ ../10.9.0.2 a.org 80": "no",
        b"8": "no",
        b"": "no",
        b"9 http://a.org/ 10.9.0.2 a.org 80": "yes",
    }
    answered = io.BytesIO()
    lines = io.BytesIO(b"".join(question + b"\n" for question in questions))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(lines, "utf-8", "strict"))
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(answered, "utf-8"))
    decisions.main(tmp_path, ("80", "443"))
    numbers = [question.split(b" ")[0].decode() for question in questions]
    expected = [
        f"{number} OK allowed={is_allowed}" for number, is_allowed in zip(numbers, questions.values(), strict=True)
    ]
    assert answered.getvalue().decode().splitlines() == expected
