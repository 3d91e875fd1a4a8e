"""The list of the conversations that are being started has a limited size."""

import pytest

from shared.clock import after, now
from shared.conversations import lists as conversation_lists
from shared.db.database import Database
from shared.states import Stage
from tests.factories import ApiUser, make_start_task


def starting(database: Database, owner: ApiUser) -> set[str]:
    with database.reading() as session:
        return {task.id for task in conversation_lists.list_starting(session, owner.id)}


def test_unfinished_starts_are_listed(database: Database, user: ApiUser, other_user: ApiUser) -> None:
    found = {make_start_task(database, user, stage=stage).id for stage in (Stage.WORKING, Stage.PREPARING_REPOSITORY)}
    for stage in (Stage.READY, Stage.ERROR):
        make_start_task(database, user, stage=stage)
    make_start_task(database, user, cancelled_at=now())
    make_start_task(database, other_user)
    assert starting(database, user) == found


def test_newest_starts_are_listed_within_the_size_limit(
    database: Database, user: ApiUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversation_lists, "MAX_PAGE_BYTES", 2500)
    large = {"title": "x" * 1000}
    tasks = [make_start_task(database, user, request=large, created_at=after(-number)) for number in range(4)]
    assert starting(database, user) == {tasks[0].id, tasks[1].id}
    newest = make_start_task(database, user, request={"title": "x" * 3000}, created_at=after(1))
    assert starting(database, user) == {newest.id}
