"""Reconciling warm pools: a refill holds no lock for longer than the start of one sandbox takes."""

from dataclasses import replace
from typing import Any

import pytest
from sqlmodel import func, select

from shared.models import Sandbox
from shared.warm_pool import pool
from shared.warm_pool.start import SandboxStart
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
    start = pool.start_warm_sandbox

    def count_and_start(*arguments: Any, **options: Any) -> SandboxStart | None:
        with context.database.reading() as session:
            committed.append(session.exec(select(func.count()).select_from(Sandbox)).one())
        return start(*arguments, **options)

    monkeypatch.setattr(pool, "start_warm_sandbox", count_and_start)
    reconcile_pools(context)
    assert committed == list(range(TARGET + 1))
