"""`bootstrap`, `users` and `keys`."""

import json
from pathlib import Path

import pytest

from api.schemas.v1.api_keys import KeyInfo
from shared.db.database import Database
from shared.users import accounts
from tests.shared.cli.results import Cli, assert_complains, mode, owner, rows


def test_bootstrap_writes_the_first_user_s_key_to_a_file(migrated: Cli, var: Path, database: Database) -> None:
    response = migrated("bootstrap")
    key = (var / "admin.key").read_text().strip()
    assert response.status == 0
    assert "admin.key" in response.out
    assert key not in response.out + response.err
    assert mode(var / "admin.key") == 0o600
    assert owner(database, var, key) == "admin"


def test_second_bootstrap_does_nothing_and_reports_it(migrated: Cli, var: Path, database: Database) -> None:
    migrated("bootstrap")
    key = (var / "admin.key").read_text()
    response = migrated("bootstrap")
    assert response.status == 0
    assert "nothing to do" in response.out
    assert (var / "admin.key").read_text() == key
    with database.reading() as session:
        assert len(accounts.list_users(session)) == 1


def test_bootstrap_explains_how_to_create_another_key(migrated: Cli, var: Path) -> None:
    migrated("bootstrap")
    (var / "admin.key").unlink()
    response = migrated("bootstrap")
    assert response.status == 0
    assert "keys create" in response.out
    assert not (var / "admin.key").exists()


def test_bootstrap_replaces_the_key_of_a_lost_database(migrated: Cli, var: Path, database: Database) -> None:
    (var / "admin.key").write_text("aw_old\n")
    migrated("bootstrap")
    assert owner(database, var, (var / "admin.key").read_text().strip()) == "admin"


def test_bootstrap_without_a_writable_key_creates_no_user(
    migrated: Cli, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("shared.cli.local.installation.replace_file", refuse)
    assert_complains(migrated("bootstrap"), "no space left")
    with database.reading() as session:
        assert accounts.list_users(session) == []


def test_second_user_of_a_name_is_rejected(migrated: Cli) -> None:
    assert migrated("users", "create", "bob").status == 0
    assert_complains(migrated("users", "create", "bob"), "bob")
    assert migrated("users", "create", "bob", "--exist-ok").status == 0
    assert [row[1] for row in rows(migrated("users", "list"))] == ["bob"]


@pytest.mark.parametrize("name", ["", " ", " bob", "a\x00b", "a\nb", "\udcff", "x" * 101])
def test_malformed_name_is_rejected(migrated: Cli, name: str) -> None:
    assert_complains(migrated("users", "create", name), "name")
    assert rows(migrated("users", "list")) == []


def test_new_key_is_alone_on_standard_output(migrated: Cli, var: Path, database: Database) -> None:
    migrated("users", "create", "bob")
    response = migrated("keys", "create", "bob", "--name", "laptop")
    key = response.out.removesuffix("\n")
    assert response.status == 0
    assert owner(database, var, key) == "bob"
    assert key not in response.err
    assert key[:11] in response.err


def test_keys_are_listed_without_themselves_and_revoked(migrated: Cli, var: Path, database: Database) -> None:
    migrated("users", "create", "bob")
    key = migrated("keys", "create", "bob", "--name", "laptop").out.strip()
    listed = migrated("keys", "list", "bob")
    assert rows(listed)[0][:2] == [key[:11], "laptop"]
    assert key not in listed.out
    [shown] = json.loads(migrated("keys", "list", "bob", "--json").out)
    assert shown.keys() == {*KeyInfo.model_fields, "revoked_at"}, "the names that `--own` prints, and one more"
    assert migrated("keys", "revoke", key[:11]).status == 0
    assert owner(database, var, key) is None
    assert_complains(migrated("keys", "revoke", key[:11]), key[:11], status=3)


def test_key_may_expire(migrated: Cli, var: Path, database: Database) -> None:
    migrated("users", "create", "bob")
    expired = migrated("keys", "create", "bob", "--name", "x", "--expires-in-days", "0").out.strip()
    good = migrated("keys", "create", "bob", "--name", "y", "--expires-in-days", "0.5").out.strip()
    assert owner(database, var, good) == "bob"
    assert owner(database, var, expired) is None
    refused = migrated("keys", "create", "bob", "--name", "z", "--expires-in-days", "inf")
    assert (refused.status, "--expires-in-days" in refused.err) == (2, True)


@pytest.mark.parametrize("command", [("keys", "create", "bob", "--name", "x"), ("keys", "list", "bob")])
def test_unknown_user_has_no_keys(migrated: Cli, command: tuple[str, ...]) -> None:
    assert_complains(migrated(*command), "user", "bob", status=3)


def test_first_user_is_an_admin_even_without_bootstrap(migrated: Cli) -> None:
    for name in ("alice", "bob"):
        migrated("users", "create", name)
    assert [row[-1] for row in rows(migrated("users", "list"))] == ["admin", "user"]


def test_admin_role_is_granted_and_revoked_except_for_the_last_admin(migrated: Cli) -> None:
    migrated("bootstrap")
    migrated("users", "create", "bob")
    assert [row[-1] for row in rows(migrated("users", "list"))] == ["admin", "user"]
    assert_complains(migrated("users", "take-admin", "admin"), "last admin")
    assert "bob is an admin now" in migrated("users", "grant-admin", "bob").out
    assert "already" in migrated("users", "grant-admin", "bob").out
    assert "no longer an admin" in migrated("users", "take-admin", "admin").out
    assert [row[-1] for row in rows(migrated("users", "list"))] == ["user", "admin"]
    assert "is not an admin" in migrated("users", "take-admin", "admin").out
    assert_complains(migrated("users", "grant-admin", "carol"), "carol", status=3)
