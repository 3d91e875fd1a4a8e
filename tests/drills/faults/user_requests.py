"""Requests of the runner's user, with an entry in the history if they set a desired state."""

from datetime import datetime, timedelta
from typing import Any

import httpx
from sqlalchemy import update

from shared.models import ApiKey
from tests.drills.faults.runner import Runner
from tests.drills.requests import Outcome, Verb
from tests.services import http

SANDBOXES = "/api/v1/sandboxes"
CONVERSATIONS = "/api/v1/app-conversations"
HELLO = [{"type": "text", "text": "Hello"}]
MESSAGE = {"role": "user", "content": HELLO, "run": True}
# Longer than every period that the service compares with the age of a timestamp.
LONG = timedelta(days=1)


def send(
    runner: Runner, method: str, path: str, verb: Verb | None = None, key: str | None = None, **options: Any
) -> httpx.Response | None:
    """Send a request, and record it in the history if it has a verb; return None without a response."""
    headers = runner.client.user.headers | ({"Idempotency-Key": key} if key else {})
    call = runner.client.history.invoke(verb, None) if verb else 0
    try:
        response = http.request(method, runner.service.url + path, headers=headers, timeout=30, **options)
    except httpx.TransportError:
        return None
    if verb and response.is_success:
        runner.client.history.complete(call, Outcome.OK, verb, str(response.json()["id"]))
    return response


def record_request(runner: Runner, verb: Verb, sandbox_id: str) -> None:
    """Record an acknowledged request that was not sent through a client."""
    history = runner.client.history
    history.complete(history.invoke(verb, None), Outcome.OK, verb, sandbox_id)


def set_key_use(runner: Runner, at: datetime | None) -> None:
    """Set the time of the last use of the user's key."""
    with runner.service.database.transaction() as session:
        session.execute(update(ApiKey).values(last_used_at=at))
