"""Access of a sandbox through the egress proxy. The control of each attack is the same request to an allowed name."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.engine_filter.bodies import Policy
from deploy.engine_filter.network import NetworkRoute
from tests.isolation.network.proxy_testbed import (
    BRIDGE,
    EGRESS,
    LAN,
    METADATA,
    NAMED,
    NODE,
    PORT,
    PROXY_USER,
    PUBLIC,
    ProxyTestbed,
    exchange,
    open_proxy_testbed,
    open_tunnel,
)
from tests.services.engine_socket import running_engine_filter
from tests.waiting import eventually
from worker.network.firewall import FilteredFirewall
from worker.network.proxy import EgressProxy


@pytest.fixture(scope="module")
def testbed() -> Iterator[ProxyTestbed]:
    with open_proxy_testbed() as found:
        yield found


def get(url: str, host: str = "good.example") -> str:
    return f"GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"


def connect(target: str) -> str:
    """A request for a tunnel, and a request in it."""
    return f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n<pause>GET /inside HTTP/1.1\r\n\r\n"


ALLOWED = {
    "a name": get("http://good.example/x"),
    "a name in capitals, with a dot": get("http://GOOD.Example./x"),
    "a tunnel": connect("good.example:443"),
    "a name below a wildcard": connect("deep.below.wild.example:443"),
    "a name at a port of its own": get("http://port.example:8443/x"),
}
REFUSED = {
    "another name": get("http://other.example/x"),
    "a tunnel to another name": connect("other.example:443"),
    "the name of a wildcard itself": get("http://wild.example/x"),
    "a name that ends like an allowed one": get("http://evilgood.example/x"),
    "a name that begins like an allowed one": get("http://good.example.other.example/x"),
    "a name before an @": get("http://good.example@other.example/x"),
    "an encoded name": get("http://%6fther.example/x"),
    "an allowed name, encoded": get("http://%67ood.example/x"),
    "another port": connect("good.example:2222"),
    "a port that only another name has": get("http://good.example:8443/x"),
    "the usual port of a name with another one": get("http://port.example/x"),
    "a public address": get(f"http://{PUBLIC}/x"),
    "a tunnel to a public address": connect(f"{PUBLIC}:443"),
    "an address as a number": connect("134744072:443"),
    "an address of IPv6": connect(f"[::ffff:{PUBLIC}]:443"),
    "metadata": get(f"http://{METADATA}/x"),
    "the node": connect(f"{NODE}:443"),
    "the proxy itself": get(f"http://{NODE}:{PORT}/x"),
    "the proxy's manager": get("http://egress-proxy:3003/squid-internal-mgr/info"),
    "the proxy's manager by its own scheme": get("cache_object://localhost/info"),
    "a host in the header only": get("/x"),
    "an allowed host in the header": get("http://other.example/x", host="good.example"),
    "FTP": get("ftp://good.example/x"),
    "a name of the machine": connect("localhost:443"),
    "loopback": connect("loopback.bad.example:443"),
    "metadata by a name": get("http://metadata.bad.example/x"),
    "the LAN by a name": get("http://lan.bad.example/x"),
    "the node by a name": connect("node.bad.example:443"),
    "a neighbour by a name": connect("neighbour.bad.example:443"),
    "all addresses": connect("any.bad.example:443"),
    "loopback by IPv6": connect("loopback6.bad.example:443"),
    "a local address of IPv6": connect("local6.bad.example:443"),
    "loopback as an IPv6 address": connect("mapped.bad.example:443"),
    "metadata through a translation": connect("translated.bad.example:443"),
    "a name with a public and another address": get("http://mixed.bad.example/x"),
}


# Names that the proxy resolves and refuses by their addresses.
BY_ADDRESS = [name for name, text in REFUSED.items() if ".bad.example" in text]
# A request after another one on the same connection.
FIRST, SECOND = get("http://good.example/one").replace("Connection: close\r\n", ""), get("http://other.example/two")
POST = f"POST http://good.example/one HTTP/1.1\r\nHost: good.example\r\nContent-Length: {len(SECOND)}\r\n"
BEHIND = {
    "in the same connection": f"{FIRST}<pause>{SECOND}",
    "at the same time": f"{FIRST}{SECOND}",
    "behind chunks": f"{POST}Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{SECOND}",
    "in a body": f"{POST}\r\n{SECOND}",
}
CONTROL = "a name"


@pytest.fixture(scope="module")
def responses(testbed: ProxyTestbed) -> dict[str, str]:
    """The response to each request."""
    requested = ALLOWED | REFUSED | BEHIND
    return dict(zip(requested, testbed.send(*requested.values()), strict=True))


@pytest.mark.parametrize("name", ALLOWED)
def test_listed_name_is_reached(responses: dict[str, str], name: str) -> None:
    assert reached(responses[name])


@pytest.mark.parametrize("name", REFUSED)
def test_sandbox_reaches_no_other_host(responses: dict[str, str], name: str) -> None:
    assert reached(responses[CONTROL])
    assert re.match(r"HTTP/1\.[01] 4\d\d ", responses[name]), responses[name][:200]
    assert not reached(responses[name])


@pytest.mark.parametrize("name", BY_ADDRESS)
def test_names_are_refused_by_their_addresses_before_a_connection(responses: dict[str, str], name: str) -> None:
    assert responses[name].startswith("HTTP/1.1 403 ")


def test_squid_and_its_programs_have_no_settings_in_their_environments(testbed: ProxyTestbed) -> None:
    children = Path(f"/proc/{testbed.pid}/task/{testbed.pid}/children").read_text().split()
    commands = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in (str(testbed.pid), *children)}
    assert "squid" in commands[str(testbed.pid)]
    assert any("python3" in command for command in commands.values())
    for pid, command in commands.items():
        assert "AW_" not in Path(f"/proc/{pid}/environ").read_text(), command


def test_unknown_name_is_not_a_refusal(testbed: ProxyTestbed) -> None:
    [answered] = testbed.send(connect("nowhere.bad.example:443"))
    assert answered.startswith("HTTP/1.1 5")


@pytest.mark.parametrize("name", BEHIND)
def test_second_request_of_a_connection_is_checked_separately(responses: dict[str, str], name: str) -> None:
    assert "/two HTTP" not in responses[name]
    assert "/one HTTP" in responses["in the same connection"], "the control"


def test_second_response_of_a_name_server_is_not_used(testbed: ProxyTestbed) -> None:
    """The proxy connects to the address that it checked."""
    for _ in range(3):
        assert all(map(reached, testbed.send(get("http://rebinding.bad.example/x"))))


def test_servers_see_the_name_of_the_url_and_nothing_of_the_sandbox(testbed: ProxyTestbed) -> None:
    [answered] = testbed.send(get("http://good.example/x", host="other.example"))
    assert "Host: good.example" in answered
    assert "other.example" not in answered
    assert not re.search(rf"{re.escape(NAMED)}|forwarded|via:", answered, re.IGNORECASE)


def test_refused_names_are_not_looked_up(testbed: ProxyTestbed) -> None:
    hosts = ("carried-out.other.example", "carried-out.evil", "carried-out")
    testbed.send(*(connect(f"{host}:443") for host in hosts), *(get(f"http://{host}/") for host in hosts))
    testbed.send(get("http://carried.wild.example/"))
    requested = testbed.names_queried()
    assert "carried.wild.example" in requested, "the control"
    assert not {name for name in requested if name.startswith("carried-out")}


def test_only_the_sandbox_reaches_the_proxy_and_it_reaches_nothing_else(testbed: ProxyTestbed) -> None:
    tried = [("tcp", NODE, PORT), ("tcp", PUBLIC, 80), ("tcp", LAN, 80), ("tcp", LAN, 53), ("udp", LAN, 53)]
    assert testbed.named.probe(tried) == [True, False, False, False, False]
    assert testbed.other.probe(tried[:2]) == [False, False]
    testbed.other.run("ip", "address", "add", f"{NAMED}/32", "dev", "lo")
    as_named = testbed.other.run("python3", "-IS", "-c", BORROWED, NODE, str(PORT), NAMED)
    assert as_named == "refused", "with the address of the other sandbox"
    # The node itself has no file in the folder, so it may reach no name.
    [answered] = exchange(testbed.node, NODE, PORT, [ALLOWED[CONTROL]])
    assert answered.startswith("HTTP/1.1 403 ")


# Connects from an address that another machine also has.
BORROWED = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 2, (sys.argv[3], 0))
except OSError:
    sys.stdout.write("refused")
"""


def test_proxy_s_user_reaches_public_addresses_only(testbed: ProxyTestbed) -> None:
    """The rules hold even for a compromised proxy."""
    as_proxy = ["setpriv", f"--reuid={PROXY_USER}", "--clear-groups", "env", "PATH=/usr/bin"]
    for address, is_public in ((PUBLIC, True), (LAN, False), (METADATA, False)):
        text = "GET /x HTTP/1.1\r\n\r\n"
        assert all(map(reached, exchange(testbed.node, address, 80, [text]))), "the control"
        assert all(map(reached, exchange(testbed.node, address, 80, [text], as_proxy))) == is_public


def test_change_takes_effect_while_the_sandbox_runs(testbed: ProxyTestbed) -> None:
    texts = (ALLOWED[CONTROL], REFUSED["another name"], REFUSED["a public address"], REFUSED["metadata by a name"])

    def found(egress: str) -> list[bool]:
        testbed.set_egress(egress)
        return [reached(answered) for answered in testbed.send(*texts)]

    try:
        assert found("other.example") == [False, True, False, False]
        assert found("8.8.0.0/16") == [False, False, True, False]
        assert found("open") == [True, True, True, False]
        assert found("none") == [False, False, False, False]
        assert testbed.send(texts[0]) == [""], "the proxy is not reached either"
    finally:
        assert found(EGRESS) == [True, False, False, False]


@pytest.mark.parametrize("egress", ["other.example", "8.8.0.0/16", "none"])
def test_open_tunnels_end_when_their_sandbox_may_reach_less(testbed: ProxyTestbed, egress: str) -> None:
    with open_tunnel(testbed.named, "good.example:443") as tunnel:
        try:
            testbed.set_egress(f"{EGRESS},more.example")
            assert "200 OK" in tunnel.step(), "it may reach more"
            with open_tunnel(testbed.named, "good.example:443") as other:
                testbed.set_egress(egress)
                eventually(lambda: not other.is_running)
        finally:
            testbed.set_egress(EGRESS)
    assert all(map(reached, testbed.send(ALLOWED[CONTROL]))), "it may connect again"


def test_filter_closes_tunnels_for_a_worker_without_rights(testbed: ProxyTestbed) -> None:
    route = NetworkRoute(BRIDGE, testbed.firewall)
    with (
        running_engine_filter("unix:///nowhere", Policy("own", frozenset()), route) as host,
        open_tunnel(testbed.named, "good.example:443") as tunnel,
    ):
        try:
            EgressProxy(testbed.proxy._folder, NODE, PORT, FilteredFirewall(host)).allow(NAMED, ("other.example",))
            eventually(lambda: not tunnel.is_running)
        finally:
            testbed.set_egress(EGRESS)


def test_request_with_a_large_head_is_refused(testbed: ProxyTestbed) -> None:
    large = f"\r\nX-Large: {'x' * 70_000}\r\n\r\n"
    [answered, control] = testbed.send(ALLOWED[CONTROL].replace("\r\n\r\n", large), ALLOWED[CONTROL])
    assert not reached(answered)
    assert reached(control)


def test_request_with_binary_data_stops_no_process(testbed: ProxyTestbed) -> None:
    for _ in range(2):
        testbed.send(get("http://good.example/\udcff"))
    assert all(map(reached, testbed.send(ALLOWED[CONTROL])))


def reached(answered: str) -> bool:
    """Whether a server outside has responded with the head of the request."""
    return re.search(r"^GET /(x|inside) HTTP", answered, re.MULTILINE) is not None
