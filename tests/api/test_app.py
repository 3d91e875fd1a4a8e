"""The application of an API process: its startup, and what the framework would do by itself."""

import os
from pathlib import Path

from tests.factories import SECRET_KEY
from tests.services.directories import REPOSITORY
from tests.services.interpreters import Interpreters

# A separate process, because other tests have sent requests in this one.
PROGRAM = """
import fastapi.routing
from api.app import ROUTES

def refuse(*_, **__):
    raise SystemExit("a request waits for FastAPI to analyze an endpoint")

assert callable(fastapi.routing.get_dependant)  # else the next line has no effect
fastapi.routing.get_dependant = refuse
for route in ROUTES:
    route.matches({"type": "http", "method": "GET", "path": "/health", "headers": []})
"""


def test_first_request_does_not_wait_for_the_analysis_of_routes(interpreters: Interpreters) -> None:
    done = interpreters.run("-c", PROGRAM, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr


# The provider of OpenTelemetry can be set only once in a process.
TELEMETRY = """
from fastapi.testclient import TestClient
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from api.app import create_app, make_context
from shared.settings import Settings

exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
client = TestClient(create_app(make_context(Settings())))
assert client.get("/alive?session_api_key=secret").status_code == 200
assert not exporter.get_finished_spans(), exporter.get_finished_spans()[0].to_json()
"""


def test_framework_sends_no_query_to_telemetry(interpreters: Interpreters, tmp_path: Path) -> None:
    environment = {**os.environ, "AW_VAR_DIR": str(tmp_path), "AW_SECRET_KEYS": SECRET_KEY}
    done = interpreters.run("-c", TELEMETRY, cwd=REPOSITORY, env=environment)
    assert done.returncode == 0, done.stderr
