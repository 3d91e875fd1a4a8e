"""The egress of a spec, and the addresses of model servers, as operators write them."""

from ipaddress import IPv4Network

import pytest

from shared.errors import Invalid
from shared.nodes import model_servers
from shared.sandboxes import egress


@pytest.mark.parametrize(
    ("text", "stored", "is_open", "networks", "names"),
    [
        ("open", "open", True, [], []),
        (" NONE ", "none", False, [], []),
        ("10.1.0.0/16, 10.1.2.0/24,8.8.8.8", "8.8.8.8/32,10.1.0.0/16", False, ["8.8.8.8/32", "10.1.0.0/16"], []),
        ("192.168.7.9/32,open", "open,192.168.7.9/32", True, ["192.168.7.9/32"], []),
        ("PyPI.org, *.x-1.org:8443,pypi.org", "pypi.org,*.x-1.org:8443", False, [], ["pypi.org", "*.x-1.org:8443"]),
        ("a.b,10.1.0.0/16", "10.1.0.0/16,a.b", False, ["10.1.0.0/16"], ["a.b"]),
    ],
)
def test_egress_is_read(text: str, stored: str, is_open: bool, networks: list[str], names: list[str]) -> None:
    assert egress.normalize(text) == stored
    assert egress.parse(stored) == egress.Egress(is_open, tuple(map(IPv4Network, networks)), tuple(names))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "closed",
        "none,10.0.0.0/8",
        "10.0.0.1/8",
        "::/0",
        "localhost",
        "169.254.169.254/32",
        "127.0.0.1",
        "224.0.0.0/4",
        "1.2.3.4:80",
        "0x7f.1",
        "a_b.org",
        "pypi.org.",
        "pypi.org:0",
        f"{'a' * 64}.org",
        f"{'a.' * 126}org",
        ",".join(f"10.0.{number}.0/24" for number in range(65)),
        ",".join(f"a{number}.org" for number in range(65)),
    ],
)
def test_other_egress_is_rejected(text: str) -> None:
    with pytest.raises(Invalid, match="egress"):
        egress.normalize(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("https://pypi.org/simple", "neither a scheme nor a path"),
        ("a.*.org", "the first labels only"),
        ("*.org", "a whole top-level domain"),
        ("münchen.de", "xn--"),
        ("pypi.org:65536", "at most 65535"),
        ("open,pypi.org", "leave one out"),
    ],
)
def test_error_says_what_is_wrong_with_a_name(text: str, reason: str) -> None:
    with pytest.raises(Invalid, match=reason):
        egress.normalize(text)


@pytest.mark.parametrize(
    "text", ["192.168.1.20", "vllm:8000", "192.168.1.20:0", "[::1]:80", "169.254.169.254:80", ":1"]
)
def test_other_model_servers_are_rejected(text: str) -> None:
    with pytest.raises(Invalid):
        model_servers.normalize(text)


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("http://192.168.1.20:8000/v1", "192.168.1.20:8000"),
        ("https://192.168.1.20", "192.168.1.20:443"),
        ("http://host.docker.internal:11434", "10.9.0.1:11434"),
        ("http://vllm.lan:8000", None),
        ("http://192.168.1.20:99999", None),
        ("192.168.1.20:8000", None),
        ("http://[::1", None),
    ],
)
def test_model_server_is_named_by_its_address(url: str, server: str | None) -> None:
    assert model_servers.server_address(url, "10.9.0.1") == server
