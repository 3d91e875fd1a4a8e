"""The configuration: sources and derived values."""

import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings
from sqlalchemy import text

from shared.cli.exits import error_text
from shared.db.database import Database
from shared.settings import Settings
from worker.settings import WorkerSettings


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def settings(**values: Any) -> Settings:
    return Settings(**values)


@pytest.mark.parametrize(
    ("given", "in_force"),
    [
        ("postgres://u:p@h:5/d", "postgresql+psycopg://u:p@h:5/d"),
        ("postgresql://u:p@h/d?x=postgres://", "postgresql+psycopg://u:p@h/d?x=postgres://"),
        ("postgresql+psycopg://h/d", "postgresql+psycopg://h/d"),
        ("sqlite:////data/x.db", "sqlite:////data/x.db"),
    ],
)
def test_database_urls_are_normalised(given: str, in_force: str) -> None:
    assert settings(database_url=given).database == in_force


@pytest.mark.parametrize(
    "values",
    [
        {"database_url": "postgresql://u:a@hush@h/d"},
        {"database_url": "postgresql://u:a@hush:5x@h:5432/d"},
        {"database_url": "mysql://u:hush@h/d"},
        {"database_url": "hush"},
        {"database_url": "sqlite://"},
        {"database_url": "sqlite:///"},
        {"database_url": "sqlite:///:memory:"},
        {"database_url": "sqlite:///?hush"},
        {"redis_url": "redis://:hush/x@h:1/0"},
        {"redis_url": "redis://:7/hush@h:1/0"},
        {"database_url": "postgresql+psycopg2://u:hush@h/d"},
        {"redis_url": "hush:6379/0"},
        {"redis_url": "sentinel://:hush@h:26379/0"},
        {"sandbox_api_url": "hush:3000"},
        {"sandbox_api_url": "10.0.0.1:3000/hush"},
        {"web_url": "hush"},
        {"web_url": "https://agents.example/hush"},
        {"web_url": "https://u:hush@agents.example"},
        {"web_url": "https://agents.example/?"},
        {"client_url": "ws://hush"},
        {"flower_url": "https://flower:hush@"},
        {"traces_url": "http://hush:x/v1/traces"},
    ],
)
def test_unusable_urls_are_refused_without_their_passwords(values: dict[str, str]) -> None:
    with pytest.raises(ValidationError) as refused:
        settings(**values)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    "values",
    [
        {"database_url": "postgresql:///d?host=/var/run/postgresql"},
        {"database_url": "postgresql://u:a%40b/c@[::1]:5432/d?sslmode=verify-full"},
        {"redis_url": "rediss://u:p@s@h:6379/0?ssl_ca_certs=/etc/aw/ca.pem"},
        {"redis_url": "redis://"},
        {"redis_url": "redis://:p@:6379/0"},
        {"redis_url": "redis://:6379/0"},
        {"redis_url": "redis+socket:///run/broker.sock"},
        {"flower_url": "https://flower:p@flower.example"},
        {"traces_url": "http://[::1]:4318/v1/traces?key=value"},
    ],
)
def test_usable_urls_are_accepted(values: dict[str, str]) -> None:
    assert settings(**values).model_dump().items() >= values.items()


def test_defaults_are_in_the_var_directory(tmp_path: Path) -> None:
    default = settings()
    assert default.database == f"sqlite:///{tmp_path}/var/agent-workspace.db"
    assert default.broker == f"redis+socket://{tmp_path}/var/run/broker.sock"


@pytest.mark.parametrize("name", ["what?", "a%41", "50%", "a b#c@d:e", "é", "latin-\udce9%"])
def test_database_is_in_a_var_directory_of_any_name(tmp_path: Path, name: str) -> None:
    """In a URL, `?` would end its path, and `%41` would be another name."""
    var = tmp_path / name
    var.mkdir()
    with closing(Database(settings(var_dir=var).database)) as database, database.transaction() as session:
        session.execute(text("CREATE TABLE found (id INTEGER)"))
    assert [path.name for path in tmp_path.rglob("*.db")] == ["agent-workspace.db"]
    assert (var / "agent-workspace.db").exists()


def test_external_broker_is_used_unchanged() -> None:
    assert settings(redis_url="redis://:pw@h:1/2").broker == "redis://:pw@h:1/2"


@pytest.mark.parametrize(
    ("values", "public", "api"),
    [
        ({}, "http://127.0.0.1:3000", "http://127.0.0.1:3000"),
        ({"port": 80, "host": "h"}, "http://h:80", "http://h:80"),
        ({"host": "::"}, "http://[::]:3000", "http://[::1]:3000"),
        ({"host": "[::]"}, "http://[::]:3000", "http://[::1]:3000"),
        ({"web_url": "https://w/", "sandbox_api_url": "https://s/p/"}, "https://w", "https://s/p"),
    ],
)
def test_urls_have_no_slash_at_their_end(values: dict[str, Any], public: str, api: str) -> None:
    made = settings(**values)
    assert (made.public_url, made.api_url) == (public, api)


@pytest.mark.parametrize("values", [{"port": 3002}, {"port": 80, "client_port": 80}])
def test_client_port_is_not_the_port_of_the_service(values: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="AW_PORT is the same port"):
        settings(**values)


@pytest.mark.parametrize("text", ["a,b", " a , b ,", "a\nb\n", ",a,\n\nb"])
def test_secret_keys_are_listed_in_order(text: str) -> None:
    assert settings(secret_keys=SecretStr(text)).vault_keys == ["a", "b"]


def test_secret_keys_come_from_the_file_where_none_are_configured(tmp_path: Path) -> None:
    made = settings(var_dir=tmp_path)
    with pytest.raises(FileNotFoundError):
        _ = made.vault_keys
    made.secret_key_file.write_text("k\n")
    assert made.vault_keys == ["k"]


def test_secret_keys_are_not_shown() -> None:
    made = settings(secret_keys=SecretStr("hush"))
    assert "hush" not in repr(made) + str(made) + made.model_dump_json()


def test_environment_takes_precedence_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "env").write_text("AW_PORT=4001\nAW_HOST=filed\nOTHER=1\n")
    monkeypatch.setenv("AW_PORT", "4002")
    assert (settings().port, settings().host) == (4002, "filed")


@pytest.mark.parametrize("values", [{"port": 0}, {"port": "x"}, {"log_format": "xml"}, {"republish_seconds": 0}])
def test_invalid_value_is_rejected(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settings(**values)


@pytest.mark.parametrize(
    ("variable", "text", "reason"),
    [
        ("AW_TRUSTED_PROXIES", "foo", "'foo' is no address"),
        ("AW_TRUSTED_PROXIES", "127.0.0.1,10.0.0.1/8", "'10.0.0.1/8' is no address"),
        ("AW_TRUSTED_PROXIES", "*", "'\\*' is no address"),
        ("AW_MODEL_SERVERS", "foo", "an IPv4 address and a port"),
        ("AW_MODEL_SERVERS", "192.168.1.20:8000,192.168.1.21", "an IPv4 address and a port"),
        ("AW_MODEL_SERVERS", "127.0.0.1:8000", "never reachable"),
        ("AW_CORS_ORIGINS", "page.example", "https://page.example"),
        ("AW_CORS_ORIGINS", "https://a.example,*", "https://page.example"),
        ("AW_CORS_ORIGINS", "https://a.example/app", "without a path"),
        ("AW_GIT_HOSTS", "https://git.example.lan", "without a scheme"),
        ("AW_HOST", "127.0.0.1:3000", "without a scheme and a port"),
        ("AW_NODE_ADDRESS", "http://10.0.0.2", "without a scheme and a port"),
        ("AW_ADVERTISED_HOST", "node b", "without a scheme and a port"),
        ("AW_QUARANTINE_SECONDS", "inf", "finite"),
        ("AW_WAKE_SECONDS", "inf", "finite"),
    ],
)
def test_nonsense_is_refused_with_the_name_of_the_setting_and_the_reason(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, reason: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ValidationError) as refused:
        _ = (Settings(), WorkerSettings())
    assert re.match(f"{variable}: .*{reason}", error_text(refused.value, "x"))


@pytest.mark.parametrize(
    "values",
    [
        {"trusted_proxies": ""},
        {"trusted_proxies": "10.0.0.0/8, 127.0.0.1,::1,fd00::/8,0.0.0.0/0"},
        {"model_servers": "192.168.1.20:8000,10.0.0.1:80"},
        {"cors_origins": "https://page.example, http://localhost:5173/,tauri://localhost,http://[::1]:80,null"},
        {"git_hosts": "git.example.lan,10.0.0.3:3000,fd00::1,git_lan"},
        {"host": "::"},
        {"host": "api.internal"},
    ],
)
def test_usable_addresses_are_accepted_unchanged(values: dict[str, str]) -> None:
    assert settings(**values).model_dump().items() >= values.items()


def test_brackets_of_an_address_in_a_url_are_no_part_of_a_host() -> None:
    """No socket accepts them."""
    own = WorkerSettings(node_address="[fd00::1]", metrics_host="[::1]")
    assert (settings(host="[::1]").host, own.node_address, own.metrics_host) == ("::1", "fd00::1", "::1")
    assert own.door_url == "http://[fd00::1]:3001"


def is_safe_if_empty(kind: type[BaseSettings], name: str) -> bool:
    """Whether an empty setting is refused, or has the default."""
    try:
        return bool(getattr(kind.model_validate({name: ""}), name) == kind.model_fields[name].default)
    except ValidationError:
        return True


@pytest.mark.parametrize("kind", [Settings, WorkerSettings])
def test_empty_setting_is_refused_unless_its_description_says_what_it_means(kind: type[BaseSettings]) -> None:
    """An empty address would be that of all interfaces, and an empty folder the current one."""
    unclear = [name for name, field in kind.model_fields.items() if "empty" not in str(field.description)]
    assert [name for name in unclear if not is_safe_if_empty(kind, name)] == []


def test_every_variable_has_a_description() -> None:
    assert all(field.description for field in Settings.model_fields.values())
