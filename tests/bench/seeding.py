"""Fast creation of a large store: N conversations, N/10 sandboxes and N/100 users, the first of which has N/20 more.

Times lie within one year. Titles use a few thousand words. One conversation in ten is a child of another. Every second
sandbox runs, so that lists have keys to decrypt.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Engine, Table, insert
from sqlmodel import SQLModel

from shared.crypto import Vault, new_api_key
from shared.db.database import Database
from shared.ids import new_id
from shared.models import ApiKey, Conversation, ListVersion, Sandbox, SandboxSpec, User
from shared.models.columns import Json, UtcDateTime
from shared.states import Desired, PauseKind, Status
from tests.factories import ApiUser
from tests.waiting import eventually

SPEC_ID = "agent-workspace/sandbox:bench"
NEWEST = datetime(2026, 11, 1, tzinfo=UTC)
YEAR_SECONDS = 365 * 24 * 60 * 60
VERBS = [
    "Fix",
    "Add",
    "Remove",
    "Refactor",
    "Explain",
    "Test",
    "Document",
    "Rename",
    "Measure",
    "Port",
    "Review",
    "Rewrite",
]
NOUNS = [
    "parser",
    "login",
    "cache",
    "page",
    "queue",
    "worker",
    "invoice",
    "search",
    "upload",
    "report",
    "schema",
    "webhook",
]
# A word in one title of a thousand.
RARE = "flamingo"
URLS = [{"name": "AGENT_SERVER", "url": "http://127.0.0.1:18000", "port": 8000}]
TOKENS = {"model": "m", "prompt_tokens": 81_234, "completion_tokens": 4_321, "cache_read_tokens": 70_000}
METRICS = {"model_name": "m", "accumulated_cost": 0.4211, "accumulated_token_usage": TOKENS}
BATCH = 1_000


class Seeded:
    """The users of the store with their keys. The first has more conversations than the others."""

    def __init__(self, size: int) -> None:
        self.heavy, *self.average = (_api_user(number) for number in range(max(size // 100, 2)))
        self.sandboxes: dict[str, list[str]] = {}

    @property
    def users(self) -> list[ApiUser]:
        """All users."""
        return [self.heavy, *self.average]


def seed(database: Database, vault: Vault, size: int) -> Seeded:
    """Fill a migrated, empty store, with the same rows for the same size except their ids."""
    chance = random.Random(size)
    seeded = seed_sandboxes(database, vault, size, chance)
    _fill(database.engine, ApiKey, (_key(user, vault) for user in seeded.users))
    _fill(database.engine, Conversation, _conversations(seeded, size, chance))
    _fill_versions(database.engine, seeded)
    _analyze(database.engine)
    return seeded


def seed_sandboxes(database: Database, vault: Vault, size: int, chance: random.Random) -> Seeded:
    """Add the users and sandboxes of a store of that size."""
    seeded = Seeded(size)
    _fill(database.engine, User, (_user(user) for user in seeded.users))
    _fill(database.engine, SandboxSpec, [{"id": SPEC_ID, "position": 0}])
    _fill(database.engine, Sandbox, _sandboxes(seeded, vault, size, chance))
    return seeded


def _api_user(number: int) -> ApiUser:
    return ApiUser(new_id(), f"user-{number}", new_api_key())


def _user(user: ApiUser) -> dict[str, Any]:
    return {"id": user.id, "name": user.name}


def _key(user: ApiUser, vault: Vault) -> dict[str, Any]:
    return {"user_id": user.id, "name": "bench", "prefix": user.key[:11], "digest": vault.digest(user.key)}


def _owners(seeded: Seeded, count: int, more: int) -> Iterator[ApiUser]:
    """Each user in turn, then only the one with many conversations."""
    yield from (seeded.users[number % len(seeded.users)] for number in range(count))
    yield from (seeded.heavy for _ in range(more))


def _sandboxes(seeded: Seeded, vault: Vault, size: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    for number, owner in enumerate(_owners(seeded, max(size // 10, len(seeded.users)), size // 200)):
        sandbox_id, key, at = new_id(), new_api_key(), _some_time(chance)
        seeded.sandboxes.setdefault(owner.id, []).append(sandbox_id)
        runs = number // len(seeded.users) % 2 == 0
        settled = (
            {"status": Status.RUNNING, "desired": Desired.RUNNING, "exposed_urls": URLS, "pause_kind": None}
            if runs
            else {"status": Status.PAUSED, "desired": Desired.PAUSED, "pause_kind": PauseKind.FROZEN}
        )
        yield settled | {
            "id": sandbox_id,
            "owner_id": owner.id,
            "spec_id": SPEC_ID,
            "observed_generation": 1,
            "session_key": vault.encrypt(key),
            "session_key_digest": vault.digest(key),
            "created_at": at,
            "updated_at": at,
        }


def _conversations(seeded: Seeded, size: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    latest: dict[str, str] = {}
    for owner in _owners(seeded, size, size // 20):
        conversation_id, at = new_id(), _some_time(chance)
        child = chance.random() < 0.1
        yield {
            "id": conversation_id,
            "owner_id": owner.id,
            "sandbox_id": chance.choice(seeded.sandboxes[owner.id]),
            "parent_id": latest.get(owner.id) if child else None,
            "title": _title(chance),
            "selected_repository": "acme/shop",
            "selected_branch": "main",
            "git_provider": "github",
            "trigger": "gui",
            "llm_model": "provider/model-large",
            "execution_status": "finished",
            "metrics": METRICS,
            "working_dir": "/workspace/project",
            "created_at": at,
            "updated_at": at + timedelta(seconds=chance.randrange(86_400)),
        }
        if not child:
            latest[owner.id] = conversation_id


def _title(chance: random.Random) -> str:
    rare = f" for the {RARE}" if chance.random() < 0.001 else ""
    return f"{chance.choice(VERBS)} the {chance.choice(NOUNS)} of module {chance.randrange(5_000)}{rare}"


def _some_time(chance: random.Random) -> datetime:
    return NEWEST - timedelta(seconds=chance.random() * YEAR_SECONDS)


def _fill(engine: Engine, model: type[SQLModel], rows: Iterable[dict[str, Any]]) -> None:
    """Insert rows without the ORM, with the model's defaults for missing columns."""
    table: Table = model.__table__  # type: ignore[attr-defined]
    write = _copy if engine.dialect.name == "postgresql" else _insert
    write(engine, table, (_complete(model, row) for row in rows))


def _complete(model: type[SQLModel], row: dict[str, Any]) -> dict[str, Any]:
    fields = model.model_fields
    missing = (name for name in fields if name not in row)
    return row | {name: fields[name].get_default(call_default_factory=True, validated_data={}) for name in missing}


def _insert(engine: Engine, table: Table, rows: Iterator[dict[str, Any]]) -> None:
    with engine.execution_options(writing=True).begin() as connection:
        while batch := list(islice(rows, BATCH)):
            connection.execute(insert(table), batch)


def _copy(engine: Engine, table: Table, rows: Iterator[dict[str, Any]]) -> None:
    names = [column.name for column in table.columns]
    stored = {column.key: _stored(column.type) for column in table.columns}
    statement = f'COPY "{table.name}" ({", ".join(names)}) FROM STDIN'
    with engine.begin() as connection:
        # Triggers would update the list versions for each of a million rows: disable them, and write the versions once.
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")
        connection.exec_driver_sql("SET LOCAL statement_timeout = 0")  # it includes the generation of the rows
        driver: Any = connection.connection.driver_connection
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row([write(row[name]) for name, write in stored.items()])


def _fill_versions(engine: Engine, seeded: Seeded) -> None:
    if engine.dialect.name == "postgresql":  # SQLite's triggers have written them
        _fill(engine, ListVersion, ({"owner_id": user.id, "version": new_id()} for user in seeded.users))


def _stored(kind: Any) -> Callable[[Any], Any]:
    if isinstance(kind, Json):
        return lambda value: None if value is None else json.dumps(value, separators=(",", ":"))
    return (lambda value: value and value.isoformat()) if isinstance(kind, UtcDateTime) else (lambda value: value)


def _analyze(engine: Engine) -> None:
    """Do what autovacuum does: update the planner's statistics and the visibility map."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if engine.dialect.name == "postgresql":
            eventually(lambda: _vacuum(connection), deadline_seconds=60)
        connection.exec_driver_sql("ANALYZE")


def _vacuum(connection: Connection) -> bool:
    """Vacuum; return whether all pages are marked all-visible.

    A page is not marked before its commit, and commits close to that one, have been flushed to the log. The latter may
    be other tests' commits.
    """
    connection.exec_driver_sql("CHECKPOINT")
    connection.exec_driver_sql("VACUUM")
    hidden = "SELECT count(*) FROM pg_class WHERE relname IN ('conversation', 'sandbox') AND relallvisible < relpages"
    return bool(connection.exec_driver_sql(hidden).scalar_one() == 0)
