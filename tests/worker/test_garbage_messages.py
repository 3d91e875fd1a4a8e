"""Messages in a worker's queue that are no jobs are dropped; their content is not logged, and the worker goes on."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from shared.queue.envelopes import is_envelope
from tests.fakes.waiting_worker import QUEUE, TASK, WaitingWorker
from tests.services.valkey import Valkey
from tests.waiting import eventually
from worker.celery_consumer import select_headers

# The broker's key of the queue.
KEY = f"aw:{QUEUE}"
CONTENT = "the-content-of-a-message"
ARGUMENTS: Any = [[CONTENT], {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]


def encoded(body: Any) -> str:
    return b64encode(json.dumps(body).encode()).decode()


def message(headers: Any = None, *, body: Any = ARGUMENTS, properties: Any = None, **fields: Any) -> bytes:
    """A message like Celery's. None removes a header, a property or a field."""
    tag = {"delivery_tag": CONTENT, "delivery_info": {"exchange": "", "routing_key": QUEUE}, "body_encoding": "base64"}
    document = {
        "body": encoded(body),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": without_none({"task": TASK, "id": "an-id", "lang": "py"} | (headers or {})),
        "properties": without_none(tag | (properties or {})),
    }
    return json.dumps(
        without_none(document | {name.replace("_", "-"): value for name, value in fields.items()})
    ).encode()


def without_none(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if value is not None}


UNREADABLE = {
    "nothing": b"",
    "no JSON": CONTENT.encode(),
    "no UTF-8": b'{"body": "\xff\xfe"}',
    "half a message": message()[:-40],
    "too deep": b"[" * 100_000,
    "a number with too many digits": b"7" * 10_000,
    "null": b"null",
    "a number": b"7",
    "a text": json.dumps(CONTENT).encode(),
    "a list": json.dumps([CONTENT]).encode(),
    "an empty object": b"{}",
    "an object of another program": json.dumps({"job": CONTENT}).encode(),
    "an unknown type of Kombu": json.dumps({"__type__": CONTENT, "__value__": 7}).encode(),
    "a wrong value of such a type": message({"x": {"__type__": "datetime", "__value__": 7}}),
    "no properties": message().replace(b'"properties"', b'"qroperties"'),
    "properties that are a list": message().replace(b'"properties": {', b'"properties": [], "x": {'),
    "no delivery tag": message(properties={"delivery_tag": None}),
    "a tag that is an object": message(properties={"delivery_tag": {CONTENT: 7}}),
    "a tag that has no encoding": message(properties={"delivery_tag": "\ud800"}),
    "no delivery info": message(properties={"delivery_info": None}),
    "no exchange": message(properties={"delivery_info": {"routing_key": QUEUE}}),
    "delivery info that is a text": message(properties={"delivery_info": CONTENT}),
    "no body": message().replace(b'"body"', b'"cody"'),
    "a body that is an object": message().replace(b'"body": "', b'"body": {}, "x": "'),
    "an empty body": message().replace(encoded(ARGUMENTS).encode(), b""),
    "a body that is no base64": message().replace(encoded(ARGUMENTS).encode(), b"A"),
    "a body of other digits": message().replace(encoded(ARGUMENTS).encode(), b"\\u00e9"),
    "a body of no JSON": message().replace(encoded(ARGUMENTS).encode(), b64encode(CONTENT.encode())),
    "a body of no text": message().replace(encoded(ARGUMENTS).encode(), b64encode(b"\xff")),
    "an unknown encoding of the body": message(properties={"body_encoding": CONTENT}),
    "headers that are a list": message().replace(b'"headers": {', b'"headers": [], "x": {'),
    "a compressed body": message({"compression": "application/x-gzip"}),
    "another content type": message(content_type="application/x-python-serialize"),
    "a content type that is a number": message(content_type=7),
    "another content encoding": message(content_encoding=CONTENT),
    "a content encoding that is a number": message(content_encoding=7),
}
WRONG = {
    "no task": message({"task": None}),
    "an unknown task": message({"task": CONTENT}),
    "a task that is a list": message({"task": [CONTENT]}),
    "a task of Celery's own": message({"task": "celery.chain"}),
    "no id": message({"id": None}),
    "an id that is an object": message({"id": {CONTENT: 7}}),
    "an id of two lines": message({"id": f"an-id\n{CONTENT}"}),
    "Celery's first protocol": message(
        {"task": None}, body={"task": TASK, "id": "an-id", "args": [CONTENT], "kwargs": {}}
    ),
    "both protocols": message(body={"task": TASK, "id": "an-id", "args": [CONTENT], "kwargs": {}}),
    "a body of null": message(body=None),
    "a body that is a number": message(body=7),
    "a body that is a text": message(body=CONTENT),
    "a body that is an empty list": message(body=[]),
    "a body of two parts": message(body=[[CONTENT], {}]),
    "no argument": message(body=[[], {}, {}]),
    "two arguments": message(body=[[CONTENT, CONTENT], {}, {}]),
    "an argument that is a number": message(body=[[7], {}, {}]),
    "an argument that is an object": message(body=[[{CONTENT: 7}], {}, {}]),
    "arguments that are a text": message(body=[CONTENT, {}, {}]),
    "a named argument": message(body=[[CONTENT], {CONTENT: 7}, {}]),
    "named arguments that are a list": message(body=[[CONTENT], [7], {}]),
    "a next job": message(body=[[CONTENT], {}, {"callbacks": [{"task": TASK, "args": [CONTENT], "kwargs": {}}]}]),
    "a last part that is a list": message(body=[[CONTENT], {}, [7]]),
}
# Celery would raise for these, or begin the job later or never.
IGNORED_HEADERS: dict[str, Any] = {
    "eta": "2999-01-01T00:00:00",
    "expires": "1999-01-01T00:00:00",
    "timelimit": 7,
    "stamped_headers": 7,
    "shadow": {CONTENT: 7},
    "group": [CONTENT],
    "request_id": f"two\n{CONTENT}",
    "published_at": CONTENT,
    "traceparent": [CONTENT],
    "root_id": {CONTENT: 7},
}


def test_worker_drops_messages_that_are_not_jobs_and_continues(
    celery_app: Celery, waiting_worker: WaitingWorker, valkey: Valkey, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    garbage = UNREADABLE | WRONG
    with valkey.client() as client:
        client.lpush(KEY, *garbage.values())
        celery_app.send_task(TASK, args=["after"], queue=QUEUE)
        eventually((tmp_path / "ended-after").exists)
        assert waiting_worker.runs
        log = (tmp_path / "log").read_text()
        assert log.count("message_dropped") == len(garbage)
        assert CONTENT not in log
        assert eventually(lambda: (client.hlen("aw:unacked"), client.llen(KEY)) == (0, 0))
    assert not list(tmp_path.glob(f"begun-{CONTENT}"))


def test_other_headers_neither_delay_nor_fail_a_job(
    waiting_worker: WaitingWorker, valkey: Valkey, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    with valkey.client() as client:
        client.lpush(KEY, message(IGNORED_HEADERS, body=[["odd"], {}, {}]))
    eventually((tmp_path / "ended-odd").exists)
    assert waiting_worker.runs
    assert CONTENT not in (tmp_path / "log").read_text()


@pytest.mark.parametrize("name", UNREADABLE)
def test_item_that_kombu_cannot_read_is_not_an_envelope(name: str) -> None:
    assert not is_envelope(UNREADABLE[name])


@pytest.mark.parametrize("name", WRONG)
def test_wrong_job_is_an_envelope(name: str) -> None:
    """A wrong job passes the check of messages, and is dropped by the check of jobs."""
    assert is_envelope(WRONG[name])


def test_known_headers_are_kept() -> None:
    known = {"task": TASK, "id": "an-id", "request_id": "a-request", "published_at": 1.5, "traceparent": "00-1-2-01"}
    assert select_headers(known | {"eta": None, "retries": 0}) == known
    assert select_headers(IGNORED_HEADERS) == {}
