"""A worker survives the loss of its broker in every state, and unreadable items of its queues."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from kombu import Consumer, Queue
from kombu.transport.redis import QoS

from shared.queue import kombu_patches
from tests.fakes.waiting_worker import QUEUE, TASK, WaitingWorker
from tests.services.valkey import Valkey
from tests.waiting import eventually


def test_busy_worker_with_prefetched_jobs_survives(
    celery_app: Celery, waiting_worker: WaitingWorker, valkey: Valkey, tmp_path: Path
) -> None:
    """The running jobs end, and the prefetched ones begin, while their connection is lost."""
    for number in range(6):
        send(celery_app, str(number))
    begun = eventually(lambda: files(tmp_path, "begun-", at_least=2))
    valkey.kill()
    (tmp_path / "go").touch()
    eventually(lambda: files(tmp_path, "ended-", at_least=len(begun)))
    valkey.start()
    send(celery_app, "after")
    eventually((tmp_path / "ended-after").exists)
    assert waiting_worker.runs, (tmp_path / "log").read_text()


def test_worker_reconnects_at_a_constant_interval(
    celery_app: Celery, waiting_worker: WaitingWorker, valkey: Valkey, tmp_path: Path
) -> None:
    """The worker tries every second, so jobs sent after an outage begin soon."""
    (tmp_path / "go").touch()
    send(celery_app, "before")
    eventually((tmp_path / "ended-before").exists)
    valkey.kill()
    eventually(lambda: "Trying again in 1.00 second... (4/" in (tmp_path / "log").read_text())
    valkey.start()
    send(celery_app, "after")
    eventually((tmp_path / "ended-after").exists)
    assert waiting_worker.runs, (tmp_path / "log").read_text()


@pytest.mark.parametrize("lost", ["channel", "transport"])
def test_message_of_a_lost_connection_is_dropped(celery_app: Celery, lost: str) -> None:
    """The same calls on kombu's own class raise an AttributeError, which ends a worker."""
    send(celery_app, "1")
    channel, tag = fetch_and_lose(celery_app, lost)
    with pytest.raises(AttributeError):
        QoS.ack(channel.qos, tag)
    with pytest.raises(AttributeError):
        QoS.restore_unacked(channel.qos)
    channel.qos.ack(tag)
    channel.qos.restore_unacked()
    assert not channel.qos._delivered


def test_message_is_restored_while_its_connection_exists(celery_app: Celery) -> None:
    send(celery_app, "1")
    with celery_app.connection() as connection:
        channel: Any = connection.default_channel
        channel.queue_declare(QUEUE)
        assert channel.basic_get(QUEUE)
        channel.qos.restore_unacked()
        assert channel.basic_get(QUEUE)


def test_unreadable_items_of_a_queue_do_not_delay_another_queue(celery_app: Celery, valkey: Valkey) -> None:
    received: list[Any] = []
    with valkey.client() as client, celery_app.connection() as connection:
        queues = [Queue("first"), Queue("second")]
        with Consumer(connection.default_channel, queues, on_message=received.append):
            client.lpush("aw:first", *["{}"] * 10)
            celery_app.send_task(TASK, args=["1"], queue="second")
            for _ in range(2):
                connection.drain_events(timeout=10)
            assert len(received) == 1
            received.pop().ack()
            assert client.llen("aw:first") == 9


def test_queue_without_a_reader_keeps_its_newest_messages(
    celery_app: Celery, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kombu_patches, "MAX_QUEUED", 3)
    for number in range(5):
        celery_app.send_task(TASK, args=[str(number)], queue="read")
    with valkey.client() as client:
        queued = client.lrange("aw:read", 0, -1)
    messages = [json.loads(base64.b64decode(json.loads(message)["body"])) for message in queued]
    assert [arguments for arguments, *_ in messages] == [["4"], ["3"], ["2"]]


def fetch_and_lose(app: Celery, lost: str) -> tuple[Any, str]:
    """A channel with a fetched message that has lost its transport or its transport's connection."""
    channel: Any = app.connection().default_channel
    channel.queue_declare(QUEUE)
    message = channel.basic_get(QUEUE)
    channel._disconnect_pools()
    channel.qos._on_collect.cancel()  # otherwise, the message would be put back when the interpreter ends
    if lost == "channel":
        channel.connection = None
    else:
        channel.connection.client = None
    return channel, message.delivery_tag


def send(app: Celery, row_id: str) -> None:
    app.send_task(TASK, args=[row_id], queue=QUEUE, retry=True)


def files(directory: Path, prefix: str, *, at_least: int) -> list[str]:
    names = [path.name for path in directory.glob(f"{prefix}*")]
    return names if len(names) >= at_least else []
