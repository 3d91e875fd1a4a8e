"""Startup of an API process: the first request waits for no initialization."""

import subprocess
import sys

from tests.services.directories import REPOSITORY

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


def test_first_request_does_not_wait_for_the_analysis_of_routes() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
