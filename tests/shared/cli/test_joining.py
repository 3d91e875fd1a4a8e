"""`nodes invite` and `nodes join`: the settings that another machine gets, and the invitations that it refuses."""

import io
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest
from annotated_types import MaxLen

from shared.cli.service import joining
from shared.cli.service.joining import MAX_NAME, check_connections, read_invitation, write_invitation
from shared.crypto import new_secret_key
from shared.errors import Invalid, Unavailable
from shared.settings import Settings
from tests.shared.cli.results import Cli, assert_complains
from worker.settings import WorkerSettings

KEY = new_secret_key()
REACHABLE = {
    "database_url": "postgresql://workspace:pa$s@10.77.0.1/workspace?sslmode=require&connect_timeout=3",
    "redis_url": "redis://:secret@10.77.0.1:6379/0",
    "secret_keys": KEY,
    "sandbox_api_url": "http://10.77.0.1:3000",
}


def settings(**changes: object) -> Settings:
    return Settings.model_validate({"host": "10.77.0.1"} | REACHABLE | changes)


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[str]]:
    """The processes that a join starts; no connection is made."""
    started: list[Sequence[str]] = []
    monkeypatch.setattr(joining, "check_connections", lambda _: None)
    monkeypatch.setattr(joining, "run_processes", started.append)
    return started


def test_invitation_is_read_as_it_was_written() -> None:
    found = read_invitation(write_invitation(settings(sandbox_addresses="10.99.0.0/24", door_ca="/etc/ca.pem")))
    expected = {f"AW_{name.upper()}": value for name, value in REACHABLE.items()} | {
        "AW_WEB_URL": "http://10.77.0.1:3000"
    }
    assert found == expected | {"AW_SANDBOX_ADDRESSES": "10.99.0.0/24", "AW_DOOR_CA": "/etc/ca.pem"}


def test_default_image_of_the_service_is_in_the_invitation_if_it_is_set() -> None:
    found = read_invitation(write_invitation(settings(default_sandbox_image="registry.test/agent:1")))
    assert found["AW_DEFAULT_SANDBOX_IMAGE"] == "registry.test/agent:1"
    assert "AW_DEFAULT_SANDBOX_IMAGE" not in read_invitation(write_invitation(settings()))


@pytest.mark.parametrize("web_url", ["", "https://agents.example.com"])
def test_agent_servers_of_a_node_that_joins_accept_the_pages_of_the_service(
    web_url: str, cli: Cli, joined: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its workers pass these settings on to agent servers."""
    first = settings(web_url=web_url, cors_origins="https://page.example,https://other.example/")
    monkeypatch.setattr("sys.stdin", io.StringIO(write_invitation(first)))
    assert cli("nodes", "join", "10.77.0.2").status == 0
    own = Settings()
    assert (own.public_url, own.cors_origin_list) == (first.public_url, first.cors_origin_list)
    assert len(joined) == 1


def test_empty_setting_is_not_in_the_invitation() -> None:
    found = read_invitation(write_invitation(settings(sandbox_addresses="")))
    assert "AW_SANDBOX_ADDRESSES" not in found
    assert Settings.model_validate({name.removeprefix("AW_").lower(): text for name, text in found.items()})


@pytest.mark.parametrize("password", ["it's", "'", '"', "a\\'b", "a\\\\b", "a b#c", "a${HOME}b", "a$b"])
def test_password_may_have_any_character(password: str, tmp_path: Path) -> None:
    url = f"postgresql://workspace:{password}@10.77.0.1/workspace"
    invitation = write_invitation(settings(database_url=url))
    assert read_invitation(invitation)["AW_DATABASE_URL"] == url
    (tmp_path / "env").write_text(invitation)
    assert Settings(_env_file=tmp_path / "env").database_url == url


def test_address_of_the_api_is_passed_on() -> None:
    assert (
        read_invitation(write_invitation(settings(sandbox_api_url="")))["AW_SANDBOX_API_URL"]
        == REACHABLE["sandbox_api_url"]
    )


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"database_url": ""}, "AW_DATABASE_URL"),
        ({"database_url": "sqlite:////data/workspace.db"}, "AW_DATABASE_URL"),
        ({"database_url": "postgresql:///workspace"}, "AW_DATABASE_URL"),
        ({"database_url": "postgresql://u:secret/x@127.0.0.1/workspace"}, "AW_DATABASE_URL"),
        ({"redis_url": ""}, "AW_REDIS_URL"),
        ({"redis_url": "redis://127.0.0.1:6379/0"}, "AW_REDIS_URL"),
        ({"host": "127.0.0.1", "sandbox_api_url": ""}, "AW_SANDBOX_API_URL"),
    ],
)
def test_unreachable_machine_writes_no_invitation(changes: dict[str, str], names: str) -> None:
    with pytest.raises(Invalid, match=names) as raised:
        write_invitation(settings(**changes))
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("text", ["", "hello", "AW_DATABASE_URL=postgresql://db/x", "\0"])
def test_invalid_invitation_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="not an invitation"):
        read_invitation(text)


def test_invitation_sets_no_other_variable() -> None:
    with pytest.raises(Invalid, match="LD_PRELOAD"):
        read_invitation(write_invitation(settings()) + "LD_PRELOAD=/tmp/x.so\n")


def test_machine_that_joins_keeps_its_settings_and_runs_a_node(
    cli: Cli, tmp_path: Path, joined: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(write_invitation(settings())))
    assert cli("nodes", "join", "10.77.0.2", "--name", "b").status == 0
    file = tmp_path / "var" / "env"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    monkeypatch.delenv("AW_DATABASE_URL")
    assert Settings().database == REACHABLE["database_url"].replace("postgresql:", "postgresql+psycopg:")
    assert {"AW_NODE_ADDRESS=10.77.0.2", "AW_NODE=b"} <= set(file.read_text().splitlines())
    assert joined == [("web=0", "flower=0")]
    monkeypatch.setattr("sys.stdin", io.StringIO(write_invitation(settings())))
    assert_complains(cli("nodes", "join", "10.77.0.3"), "var/env exists already")
    assert len(joined) == 1


@pytest.mark.parametrize("address", ["node-b", "0.0.0.0", "127.0.0.1"])
def test_address_that_others_do_not_reach_is_refused(
    cli: Cli, tmp_path: Path, joined: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(write_invitation(settings())))
    assert_complains(cli("nodes", "join", address), address)
    assert not (tmp_path / "var" / "env").exists()
    assert joined == []


def test_name_that_a_worker_refuses_is_not_kept(
    cli: Cli, tmp_path: Path, joined: list[Sequence[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = next(rule.max_length for rule in WorkerSettings.model_fields["node"].metadata if isinstance(rule, MaxLen))
    assert longest == MAX_NAME
    monkeypatch.setattr("sys.stdin", io.StringIO(write_invitation(settings())))
    assert_complains(cli("nodes", "join", "10.77.0.2", "--name", "n" * (longest + 1)), "at most 64 characters")
    assert not (tmp_path / "var" / "env").exists()
    assert joined == []


@pytest.mark.parametrize("password", ["secret", "secret/x", "secret#x", "secret[x"])
def test_database_that_does_not_respond_is_named_without_its_password(password: str) -> None:
    url = f"postgresql://workspace:{password}@127.0.0.1:1/workspace"
    with pytest.raises(Unavailable, match=r"database at 127\.0\.0\.1:1 cannot be used") as raised:
        check_connections({"AW_DATABASE_URL": url, "AW_REDIS_URL": "redis://127.0.0.1:1/0"})
    assert "secret" not in str(raised.value)
