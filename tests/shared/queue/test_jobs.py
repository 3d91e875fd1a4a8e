"""Job messages and their queues."""

import dataclasses

import pytest

from shared.queue.jobs import BootWarmSandbox, Job, StartSandbox, queue_of, queues_of

JOBS = Job.__subclasses__()


def test_every_job_has_a_task_of_its_own() -> None:
    names = [job.task for job in JOBS]
    assert len(set(names)) == len(names)
    assert all(name.count(".") == 1 and name == name.lower() for name in names)


def test_job_carries_ids_only_and_is_immutable() -> None:
    job = StartSandbox("0" * 32, "node-a")
    assert dataclasses.asdict(job) == {"subject": "0" * 32, "node_id": "node-a"}
    with pytest.raises(dataclasses.FrozenInstanceError):
        job.subject = "1" * 32  # type: ignore[misc]


@pytest.mark.parametrize("job", JOBS)
def test_each_node_has_a_queue_for_urgent_jobs_and_one_for_the_pool(job: type[Job]) -> None:
    subject = "0" * 32
    assert queue_of(job(subject, "a")) in queues_of("a")
    assert not set(queues_of("a")) & set(queues_of("b"))
    assert (queue_of(job(subject, "a")) == queue_of(BootWarmSandbox(subject, "a"))) == (job is BootWarmSandbox)
