"""Compiled SQL that the tests of a process share, although each has its own database and SQLAlchemy engines.

SQLAlchemy caches compiled statements and the conversions of types with the engine and its dialect, and a session's
writes with the mapper, for each dialect. A process of the service has these caches for its whole life. Tests would
compile the same statements again and again, which took a quarter of their CPU time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Mapper

from shared.db import database


class SharedCache(dict[Any, Any]):
    """A cache of compiled statements for all engines of one configuration."""

    def get(self, key: Any, default: Any = None) -> Any:
        """The cached value of a statement. Its key begins with the dialect object, of which each engine has its own."""
        return super().get(_of_any_engine(key), default)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Cache a value."""
        super().__setitem__(_of_any_engine(key), value)


def _of_any_engine(key: tuple[Any, ...]) -> tuple[Any, ...]:
    dialect, *statement = key
    return (dialect.name, dialect.driver, dialect.paramstyle, *statement)


@contextmanager
def compiled_once() -> Iterator[None]:
    """Let all engines that the product creates in the block share compiled statements."""
    cache = SharedCache()
    memos: dict[str, Any] = {}

    def create(url: str, **options: Any) -> Engine:
        engine = create_engine(url, **options)
        engine._compiled_cache = cache
        engine.dialect._type_memos = memos.setdefault(engine.dialect.name, engine.dialect._type_memos)
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "create_engine", create)
        # A mapper that has already written keeps its own cache.
        patch.setattr(Mapper, "_compiled_cache", cache)
        yield
