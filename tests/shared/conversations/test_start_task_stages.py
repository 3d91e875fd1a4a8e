"""The transitions between every pair of stages of a start task."""

import pytest

from shared.conversations import start_tasks
from shared.db.database import Database
from shared.errors import IllegalTransition, LeaseLost
from shared.models import StartTask
from shared.states import FINAL_STAGES, STAGE_TRANSITIONS, Reason, Stage
from tests.factories import ApiUser, make_start_task
from tests.rows import as_stored

ORDER = list(Stage)


def advance(database: Database, task: StartTask, stage: Stage, reason: Reason | None = None) -> None:
    with database.transaction() as session:
        start_tasks.advance(session, task, stage, reason=reason, detail="why")


@pytest.mark.parametrize("before", sorted(set(Stage) - set(FINAL_STAGES)))
def test_legal_stages_are_written(database: Database, user: ApiUser, before: Stage) -> None:
    for after in STAGE_TRANSITIONS[before]:
        task = make_start_task(database, user, stage=before, secrets="ciphertext")
        advance(database, task, after, Reason.INTERNAL_ERROR)
        stored = as_stored(database, task)
        assert (stored.stage, stored.reason, stored.detail) == (after, Reason.INTERNAL_ERROR, "why")
        assert stored.secrets == (None if after == Stage.ERROR else "ciphertext")
        assert task.stage == after


@pytest.mark.parametrize("before", Stage)
def test_illegal_stages_are_rejected_and_write_nothing(database: Database, user: ApiUser, before: Stage) -> None:
    for after in set(Stage) - STAGE_TRANSITIONS[before]:
        task = make_start_task(database, user, stage=before, secrets="ciphertext")
        stored = as_stored(database, task).model_dump()
        with pytest.raises(IllegalTransition, match=f"{before} → {after}"):
            advance(database, task, after)
        assert as_stored(database, task).model_dump() == stored
        assert task.stage == before


@pytest.mark.parametrize("stage", sorted(set(Stage) - set(FINAL_STAGES)))
def test_unfinished_task_repeats_its_stage_advances_or_fails(stage: Stage) -> None:
    assert STAGE_TRANSITIONS[stage] == frozenset(ORDER[ORDER.index(stage) :])
    assert {stage, Stage.ERROR} <= STAGE_TRANSITIONS[stage]


@pytest.mark.parametrize("stage", FINAL_STAGES)
def test_final_stage_has_no_successor(stage: Stage) -> None:
    assert STAGE_TRANSITIONS[stage] == frozenset()


def test_stale_fencing_token_advances_nothing(database: Database, user: ApiUser) -> None:
    task = make_start_task(database, user, fence=2)
    task.fence = 1
    with pytest.raises(LeaseLost):
        advance(database, task, Stage.READY)
    assert as_stored(database, task).stage == Stage.WORKING
    assert task.stage == Stage.WORKING
