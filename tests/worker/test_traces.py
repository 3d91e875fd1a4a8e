"""One trace from a request through the queue to the engine and the agent server; and its id in the job's logs."""

import subprocess
import sys
from typing import Any

import celery
import httpx
import pytest
from fastapi.testclient import TestClient
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from requests import PreparedRequest, Response

from api.app import create_app
from api.request.context import Context
from shared.agent_server.door import open_access
from shared.observability import correlation
from shared.observability.correlation import PUBLISHED_AT, REQUEST_ID, request_id
from shared.observability.traces import OpenTelemetryTracer
from shared.queue.broker import Publisher
from shared.queue.jobs import StartSandbox
from tests.factories import ApiUser
from worker import tasks
from worker.agent_server.transport import CancellableTransport
from worker.context import WorkerContext
from worker.engine.docker_client import TimedClient

TRACE = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """The exporter of this process's spans."""
    exporter = InMemorySpanExporter()
    tracer = OpenTelemetryTracer("tests", SimpleSpanProcessor(exporter))
    monkeypatch.setattr(correlation, "tracer", tracer)
    return exporter


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The messages that are published."""
    found: list[dict[str, Any]] = []

    def send_task(_app: celery.Celery, task: str, **options: Any) -> None:
        found.append({"task": task} | options)

    monkeypatch.setattr(celery.Celery, "send_task", send_task)
    return found


def run(context: WorkerContext, message: dict[str, Any], work: Any) -> None:
    """Run the message's task as a worker does, with `work` in place of the job's own."""
    app = celery.Celery("tests", set_as_current=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "WORK", dict.fromkeys(tasks.WORK, work))
        tasks.register_tasks(app, context)
    task = app.tasks[message["task"]]
    task.push_request(id="the-message", **message["headers"])
    try:
        task.run(*message["args"])
    finally:
        task.pop_request()


def test_request_job_engine_and_agent_server_are_one_trace(
    api_context: Context,
    context: WorkerContext,
    user: ApiUser,
    exporter: InMemorySpanExporter,
    sent: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api_context.publisher, "publish", Publisher(celery.Celery("t", set_as_current=False)).publish)
    headers = user.headers | {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "X-Request-ID": "edge-1"}
    with TestClient(create_app(api_context)) as client:
        assert client.post("/api/v1/sandboxes", headers=headers).status_code == 200
    [message] = sent
    assert message["headers"].keys() == {REQUEST_ID, PUBLISHED_AT, "traceparent"}
    received: list[httpx.Headers] = []
    door = open_access(context.vault, "")

    def work(_context: WorkerContext, _row_id: str) -> None:
        assert request_id.get() == "edge-1"
        request = PreparedRequest()
        request.prepare("GET", "http://engine/containers/x/json?a=secret")
        TimedClient.send(TimedClient.__new__(TimedClient), request)
        request_to_server = httpx.Request("GET", "http://server/api/x")
        CancellableTransport(1.0, door).handle_request(request_to_server)

    def respond(_transport: Any, request: httpx.Request) -> httpx.Response:
        received.append(request.headers)
        return httpx.Response(200)

    monkeypatch.setattr("requests.Session.send", lambda *_, **__: Response())
    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", respond)
    run(context, message, work)
    spans = {span.name: span for span in exporter.get_finished_spans()}
    names = ["POST /api/v1/sandboxes", "publish sandboxes.start", "sandboxes.start", "engine GET", "agent server GET"]
    assert set(names) <= spans.keys()
    assert {f"{span.context.trace_id:032x}" for span in spans.values()} == {TRACE}
    parents = [parent_of(spans, spans[name]) for name in names]
    assert parents == [None, names[0], names[1], names[2], names[2]]
    assert "secret" not in str([dict(span.attributes or {}) for span in spans.values()])
    [header] = received
    assert header["X-Request-ID"] == "edge-1"
    assert header["traceparent"].startswith(f"00-{TRACE}-")


def parent_of(spans: dict[str, ReadableSpan], span: ReadableSpan) -> str | None:
    """The name of a span's parent, if it is one of these."""
    ids = {one.context.span_id: name for name, one in spans.items()}
    return ids.get(span.parent.span_id) if span.parent else None


@pytest.mark.parametrize(("path", "continues"), [("/health", True), ("/api/v1/webhooks/conversations", False)])
def test_client_does_not_choose_whether_it_is_sampled_and_a_sandbox_joins_no_trace(
    api_context: Context, exporter: InMemorySpanExporter, path: str, continues: bool
) -> None:
    TestClient(create_app(api_context)).get(path, headers={"traceparent": f"00-{TRACE}-b7ad6b7169203331-00"})
    [span] = exporter.get_finished_spans()
    assert (f"{span.context.trace_id:032x}" == TRACE) == continues


def test_span_records_only_the_type_of_an_error(exporter: InMemorySpanExporter) -> None:
    with pytest.raises(ValueError, match="secret"), correlation.span("work"):
        raise ValueError("secret")
    [span] = exporter.get_finished_spans()
    assert (span.status.description, span.events) == ("ValueError", ())


def test_job_of_a_sweep_has_the_id_of_its_message(context: WorkerContext) -> None:
    seen: list[str] = []
    message = {"task": StartSandbox.task, "args": ["0" * 32], "headers": {PUBLISHED_AT: 0.0}}
    run(context, message, lambda *_: seen.append(request_id.get()))
    assert seen == ["the-message"]


def test_no_exporter_is_imported_without_traces() -> None:
    # FastAPI and redis themselves import other parts of OpenTelemetry.
    code = "import sys, api.app, worker.tasks, shared.observability.correlation as c; c.configure_traces('', 'x');"
    code += "sys.exit('opentelemetry.exporter.otlp' in sys.modules or 'shared.observability.traces' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
