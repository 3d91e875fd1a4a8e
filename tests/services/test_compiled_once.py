"""Databases of tests share compiled statements, but no data."""

from sqlmodel import select

from shared.db.database import Database
from shared.models import User
from tests.factories import make_user
from tests.services.stores import SqliteStores


def test_databases_share_statements_and_keep_their_rows_apart(sqlite_stores: SqliteStores) -> None:
    names: dict[str, list[str]] = {}
    kept: list[int] = []
    for name in ("alice", "bob"):
        with sqlite_stores.cleared() as url:
            database = Database(url)
            make_user(database, name)
            with database.reading() as session:
                names[name] = list(session.exec(select(User.name)).all())
            kept.append(len(database.engine._compiled_cache or ()))
            database.close()
    assert names == {"alice": ["alice"], "bob": ["bob"]}
    assert kept[0] == kept[1] > 0
