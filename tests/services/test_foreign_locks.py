"""Processes are suspended only while they hold no lock of the database."""

from contextlib import closing

from sqlalchemy import create_engine, text

from shared.db.database import Database
from tests.services.foreign_locks import suspend_between_writes
from tests.services.stores import PostgresStores


def test_process_with_an_open_transaction_is_woken_and_suspended_again(postgres_stores: PostgresStores) -> None:
    done: list[str] = []
    with postgres_stores.fresh() as url, closing(Database(url)) as database:
        engine = create_engine(database.engine.url)
        with engine.connect() as held:
            held.execute(text("SELECT 1"))

            def wake() -> None:
                done.append("wake")
                held.rollback()

            suspend_between_writes(database, lambda: done.append("suspend"), wake)
        engine.dispose()
    assert done == ["suspend", "wake", "suspend"]
