"""The store of settings, secrets and tokens: concurrent writers, rotated keys, redacted representations."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from time import process_time

import pytest
from sqlmodel import Session, text

from shared.crypto import Vault, new_secret_key
from shared.db.database import Database
from shared.errors import NotFound
from shared.models import UserSettings
from shared.users import secrets, settings_store
from shared.users.mcp_config import MASK, mask_url
from shared.users.settings import StoredSettings
from tests.factories import SECRET_KEY, ApiUser
from tests.waiting import eventually

FIELDS = ["language", "agent", "llm_model", "llm_api_key", "email", "search_api_key", "git_user_name", "git_user_email"]
SERVERS = {"sse_servers": [{"url": "https://a.example.com", "api_key": "k"}]}


def test_unsaved_settings_are_none(database: Database, vault: Vault, user: ApiUser) -> None:
    with database.reading() as session:
        assert settings_store.load(session, vault, user.id) is None
        assert secrets.custom_secrets(session, vault, user.id) == {}
        assert secrets.provider_tokens(session, vault, user.id) == {}


def test_unknown_user_has_no_settings(database: Database, vault: Vault) -> None:
    with pytest.raises(NotFound), database.transaction() as session:
        settings_store.change(session, vault, "0" * 32, {"language": "en"})


@pytest.mark.parametrize("saved", [False, True])
def test_second_writer_waits_for_the_first(database: Database, vault: Vault, user: ApiUser, *, saved: bool) -> None:
    if saved:
        with database.transaction() as session:
            settings_store.change(session, vault, user.id, {"agent": "A"})
    begun = Event()

    def second() -> None:
        begun.set()
        with database.transaction() as session:
            settings_store.change(session, vault, user.id, {"email": "second", "llm_api_key": "second"})

    with ThreadPoolExecutor(1) as pool:
        with database.transaction() as session:
            settings_store.change(session, vault, user.id, {"language": "first"})
            waiting = pool.submit(second)
            assert begun.wait(30)
            if database.engine.dialect.name == "postgresql":
                eventually(lambda: _waits_for_a_lock(database))
            assert not waiting.done()
        waiting.result(30)
    with database.reading() as session:
        stored = settings_store.load(session, vault, user.id)
    assert stored is not None
    assert (stored.language, stored.email, stored.llm_api_key) == ("first", "second", "second")


def test_concurrent_writers_lose_no_change(database: Database, vault: Vault, user: ApiUser) -> None:
    writers: list[Callable[[Session], None]] = [
        *(lambda session, name=name: settings_store.change(session, vault, user.id, {name: name}) for name in FIELDS),
        lambda session: settings_store.change(session, vault, user.id, {"mcp_config": SERVERS}),
        *(
            lambda session, name=name: secrets.put_custom_secrets(session, vault, user.id, {name: {"secret": name}})
            for name in ("A", "B", "A")
        ),
        *(
            lambda session, name=name: secrets.put_provider_tokens(session, vault, user.id, {name: {"token": name}})
            for name in ("github", "gitlab", "github")
        ),
    ]

    def write(writer: Callable[[Session], None]) -> None:
        with database.transaction() as session:
            writer(session)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, writers))
    with database.reading() as session:
        stored = settings_store.load(session, vault, user.id)
        assert stored is not None
        assert {name: getattr(stored, name) for name in FIELDS} == {name: name for name in FIELDS}
        assert stored.mcp_config is not None
        assert {name: secret.value for name, secret in secrets.custom_secrets(session, vault, user.id).items()} == {
            "A": "A",
            "B": "B",
        }
        tokens = secrets.provider_tokens(session, vault, user.id)
    assert {name: entry.token for name, entry in tokens.items()} == {"github": "github", "gitlab": "gitlab"}


def test_new_secret_key_encrypts_and_the_old_one_still_decrypts(
    database: Database, vault: Vault, user: ApiUser
) -> None:
    rotated, other = Vault([new_secret_key(), SECRET_KEY]), Vault([new_secret_key()])
    with database.transaction() as session:
        settings_store.change(session, vault, user.id, {"llm_api_key": "k"})
        secrets.put_custom_secrets(session, vault, user.id, {"A": {"secret": "a"}})
    with database.transaction() as session:
        settings_store.change(session, rotated, user.id, {"language": "en"})
    with database.reading() as session:
        stored = settings_store.load(session, rotated, user.id)
        assert stored is not None
        assert stored.llm_api_key == "k"
        assert secrets.custom_secrets(session, rotated, user.id)["A"].value == "a"
        with pytest.raises(ValueError, match="AW_SECRET_KEYS"):
            settings_store.load(session, other, user.id)


def test_settings_of_an_older_version_can_be_read(database: Database, vault: Vault, user: ApiUser) -> None:
    document = {"max_iterations": -5, "condenser_max_size": 1, "gone": True}
    with database.transaction() as session:
        session.add(UserSettings(user_id=user.id, document=document, sealed=vault.encrypt("{}")))
    with database.reading() as session:
        stored = settings_store.load(session, vault, user.id)
    assert stored == StoredSettings(max_iterations=-5, condenser_max_size=1)


def test_repr_shows_no_secret(database: Database, vault: Vault, user: ApiUser) -> None:
    keys = dict.fromkeys(("llm_api_key", "search_api_key", "sandbox_api_key"), "plain")
    servers = {"stdio_servers": [{"name": "a", "command": "b", "args": ["plain"], "env": {"A": "plain"}}]}
    with database.transaction() as session:
        url = "https://me:plain@llm.example.com"
        settings_store.change(session, vault, user.id, {**keys, "mcp_config": servers, "llm_base_url": url})
        secrets.put_custom_secrets(session, vault, user.id, {"A": {"secret": "plain"}})
        secrets.put_provider_tokens(session, vault, user.id, {"github": {"token": "plain"}})
    with database.reading() as session:
        shown = [
            settings_store.load(session, vault, user.id),
            secrets.custom_secrets(session, vault, user.id),
            secrets.provider_tokens(session, vault, user.id),
        ]
    assert "plain" not in f"{shown!r}" + "".join(map(str, shown))


@pytest.mark.parametrize(
    ("url", "masked"),
    [
        ("https://a.example.com/x?y=1#z", "https://a.example.com/x?y=1#z"),
        ("https://alice:pw@a.example.com", f"https://{MASK}@a.example.com"),
        ("https://token@a.example.com/p@q", f"https://{MASK}@a.example.com/p@q"),
        ("https://a.example.com/p@q?at=x@y", "https://a.example.com/p@q?at=x@y"),
        ("https://a.example.com?apiKey=k&page=2", f"https://a.example.com?apiKey={MASK}&page=2"),
        (
            "https://a.example.com?a=1&ACCESS_TOKEN=k=1;sig=s",
            f"https://a.example.com?a=1&ACCESS_TOKEN={MASK};sig={MASK}",
        ),
    ],
)
def test_credentials_in_urls_are_masked(url: str, masked: str) -> None:
    assert mask_url(url) == masked
    assert mask_url(masked) == masked


def _waits_for_a_lock(database: Database) -> bool:
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with database.reading() as session:
        return bool(session.connection().execute(text(query)).scalar())


@pytest.mark.parametrize("part", ["?key", "&key", "?a=", "="])
def test_hostile_url_is_masked_quickly(part: str) -> None:
    """Other threads wait during a search, because a search holds the interpreter's lock."""
    url, began = part * 2000, process_time()
    mask_url(url)
    assert process_time() - began < 1
