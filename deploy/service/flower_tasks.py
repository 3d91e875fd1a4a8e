"""What Flower shows of a job: whose sandbox or conversation it is about, besides the id."""

import re
from types import FunctionType
from typing import Any, cast

from cachetools import TTLCache

from shared.admin.job_subjects import describe_subject
from shared.db.database import Database, StoreError

# A job's arguments as Celery reports them: one id of a row.
ARGUMENTS = re.compile(r"[\[(]'([0-9a-f]{32})',?[\])]")
# The cache expires, because a warm sandbox gets an owner later.
CACHE_SECONDS, CACHED = 30, 10_000


def make_formatter(database: Database) -> FunctionType:
    """Flower's `format_task`: it replaces the arguments that Flower shows."""
    known: TTLCache[tuple[str, str], str] = TTLCache(CACHED, CACHE_SECONDS)

    def describe(task: str, row_id: str) -> str:
        if (task, row_id) not in known:
            with database.reading() as session:
                known[task, row_id] = describe_subject(session, task, row_id)
        return known[task, row_id]

    def format_task(task: Any) -> Any:
        found = ARGUMENTS.fullmatch(task.args or "")
        if found is not None:
            try:
                task.args = describe(task.name or "", found[1])
            except StoreError:
                task.args = f"{found[1]} (the store does not respond)"
        return task

    return cast("FunctionType", format_task)
