"""Reconciling warm pools: a refill holds no lock for longer than one sandbox takes."""

from dataclasses import replace
from typing import Any

import pytest
from sqlmodel import func, select

from shared.models import Sandbox
from shared.warm_pool import pool
from tests.factories import make_node, make_spec
from worker.context import WorkerContext
from worker.loops.warm_pool import reconcile_pools

TARGET = 3


def test_each_warm_sandbox_is_committed_before_the_next(
    context: WorkerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = context.settings.model_copy(update={"warm_boot_concurrency": TARGET})
    context = replace(context, settings=settings)
    make_node(context.database, context.settings.node)
    make_spec(context.database, "image:warm", warm_target=TARGET, warm_most=TARGET)
    committed: list[int] = []
    make = pool.make_warm_sandbox

    def count_and_make(*arguments: Any, **options: Any) -> Sandbox | None:
        with context.database.reading() as session:
            committed.append(session.exec(select(func.count()).select_from(Sandbox)).one())
        return make(*arguments, **options)

    monkeypatch.setattr(pool, "make_warm_sandbox", count_and_make)
    reconcile_pools(context)
    assert committed == list(range(TARGET + 1))
