"""Compiled SQL shared by a test process: each test has its own database, and so its own SQLAlchemy engines.

SQLAlchemy keeps what it compiles, and how types are converted, with an engine and its dialect; what a session writes,
with the mapper, but for each dialect. A process of the service has these for as long as it lives. Tests would compile
the same statements again: a quarter of their processor time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Mapper

from shared.db import database


class SharedCache(dict[Any, Any]):
    """What SQLAlchemy keeps compiled statements in, found whichever engine of one configuration asks."""

    def get(self, key: Any, default: Any = None) -> Any:
        """What is kept for a statement; its key begins with the dialect, a new one for each engine."""
        return super().get(_of_any_engine(key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Keep it."""
        super().__setitem__(_of_any_engine(key), value)


def _of_any_engine(key: tuple[Any, ...]) -> tuple[Any, ...]:
    dialect, *statement = key
    return (dialect.name, dialect.driver, dialect.paramstyle, *statement)


@contextmanager
def compiled_once() -> Iterator[None]:
    """Let all engines that the product makes in the block share what they compile."""
    cache = SharedCache()
    memos: dict[str, Any] = {}

    def create(url: str, **options: Any) -> Engine:
        engine = create_engine(url, **options)
        engine._compiled_cache = cache
        engine.dialect._type_memos = memos.setdefault(engine.dialect.name, engine.dialect._type_memos)
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "create_engine", create)
        # A mapper that has written something already keeps its own.
        patch.setattr(Mapper, "_compiled_cache", cache)
        yield
