"""Publishing: best effort, without delaying a request."""

import base64
import json
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
from celery import Celery

from shared.queue.broker import Publisher, make_app
from shared.queue.jobs import PauseSandbox, StartSandbox, queue_of
from shared.settings import Settings
from tests.services.valkey import Valkey

QUEUE = f"aw:{queue_of(StartSandbox('1' * 32, 'node-a'))}"


@pytest.fixture
def app(broker_url: str) -> Iterator[Celery]:
    """An application on a real broker."""
    app = make_app(Settings(redis_url=broker_url))
    yield app
    app.close()


def queued(valkey: Valkey) -> list[tuple[str, list[str]]]:
    with valkey.client() as client:
        messages = [json.loads(text) for text in reversed(client.lrange(QUEUE, 0, -1))]
    return [(message["headers"]["task"], json.loads(base64.b64decode(message["body"]))[0]) for message in messages]


def test_job_goes_to_the_queue_of_its_node_with_one_id(app: Celery, valkey: Valkey) -> None:
    Publisher(app).publish(StartSandbox("1" * 32, "node-a"), PauseSandbox("2" * 32, "node-a"))
    assert queued(valkey) == [("sandboxes.start", ["1" * 32]), ("sandboxes.pause", ["2" * 32])]


def test_job_without_a_node_is_not_published(app: Celery, valkey: Valkey) -> None:
    Publisher(app).publish(StartSandbox("1" * 32, None))
    with valkey.client() as client:
        assert client.keys("aw:*") == []


def test_lost_broker_raises_nothing_and_is_tried_once(
    app: Celery, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.queue.broker.BREAKER_SECONDS", 600.0)
    send = Mock(wraps=app.send_task)
    monkeypatch.setattr(app, "send_task", send)
    publisher = Publisher(app)
    valkey.kill()
    for _ in range(20):
        publisher.publish(StartSandbox("1" * 32, "node-a"))
    assert send.call_count == 1


def test_publishing_resumes_when_the_broker_is_back(
    app: Celery, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.queue.broker.BREAKER_SECONDS", 0.0)
    publisher = Publisher(app)
    publisher.publish(StartSandbox("1" * 32, "node-a"))
    valkey.kill()
    publisher.publish(StartSandbox("2" * 32, "node-a"))
    valkey.start()
    valkey.flush()
    publisher.publish(StartSandbox("3" * 32, "node-a"))
    assert queued(valkey) == [("sandboxes.start", ["3" * 32])]
