"""A door finds the API by its name, also at another address than when the door started."""

from pathlib import Path

import httpx
import pytest

from deploy.door import name_servers
from deploy.door.name_servers import find_name_servers
from tests.deploy.door.test_door import Running, running
from tests.fakes.name_server import naming
from tests.services.hostile_server import answering, hostile
from tests.waiting import eventually


def report(door: Running) -> int:
    """Send what a sandbox sends; return the status of the response."""
    url = f"http://{door.prefix}.1:{door.port}/api/v1/webhooks/conversations"
    return int(httpx.post(url, timeout=20).status_code)


@pytest.mark.parametrize(("address", "named"), [("127.0.0.2", "127.0.0.2"), ("127.0.0.1", None)])
def test_api_is_where_its_name_servers_say_or_else_where_it_was(
    address: str, named: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hostile(answering({}), address) as api, naming(named) as server:
        monkeypatch.setattr("deploy.door.__main__.find_name_servers", lambda _host: [server])
        with running(tmp_path, f"http://localhost:{api.port}") as door:
            assert eventually(lambda: report(door) == 200)
            assert [report(door) for _ in range(5)] == [200] * 5


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ("api.example", ["127.0.0.53:53", "[::1]:53"]),
        ("own.example", []),
        ("alias", []),
        ("10.0.0.1", []),
        ("fd00::1", []),
    ],
)
def test_name_servers_are_asked_for_names_that_this_machine_does_not_have(
    host: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts, resolvers = tmp_path / "hosts", tmp_path / "resolv.conf"
    hosts.write_text("127.0.0.1 localhost # api.example\n10.0.0.9 own.example Alias\n")
    resolvers.write_text(
        "# a comment\nsearch example\nnameserver 127.0.0.53\nnameserver ::1\nnameserver fe80::1%eth0\n"
    )
    monkeypatch.setattr(name_servers, "HOSTS", hosts)
    monkeypatch.setattr(name_servers, "RESOLVERS", resolvers)
    assert find_name_servers(host) == found


def test_door_starts_without_name_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_servers, "RESOLVERS", tmp_path / "missing")
    monkeypatch.setattr(name_servers, "HOSTS", tmp_path / "missing")
    with hostile(answering({})) as api, running(tmp_path, f"http://localhost:{api.port}") as door:
        assert eventually(lambda: report(door) == 200)
