"""An API process that has started is ready: no request waits for what could have been done before."""

import subprocess
import sys

from tests.services.directories import REPOSITORY

# In a process of its own: in this one, requests of other tests came first.
PROGRAM = """
import fastapi.routing
from api.app import ROUTES

def refuse(*_, **__):
    raise SystemExit("a request waits for FastAPI to find out what a function wants")

assert callable(fastapi.routing.get_dependant)  # else the next line would change nothing
fastapi.routing.get_dependant = refuse
for route in ROUTES:
    route.matches({"type": "http", "method": "GET", "path": "/health", "headers": []})
"""


def test_first_request_does_not_wait_for_routes_to_be_made() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
