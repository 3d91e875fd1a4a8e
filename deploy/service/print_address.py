"""`python -m deploy.service.print_address [worker]`: print the service's address as soon as it is ready.

With `worker`, a worker runs on this machine: it prints, too, if its node takes no sandboxes.
"""

import os
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timedelta

from deploy.service.health import age_of, is_ready, local_url
from deploy.service.processes import WORKER
from shared.cli.local.installation import LocalInstallation
from shared.clock import now
from shared.db.database import StoreError
from shared.errors import WorkspaceError
from shared.models import Node
from shared.nodes import placement
from shared.reasons import more
from shared.settings import Settings
from worker.settings import WorkerSettings

DEADLINE_SECONDS = 120.0
# Max time to wait until the node takes sandboxes, after the API is ready.
NODE_SECONDS = 30.0
PAUSE_SECONDS = 0.2
# Max length of the lines around the text.
WIDTH = 100
READY = "Agent Workspace is ready"


def main(arguments: Sequence[str]) -> None:
    """Wait for the API to be ready, and print its URL and the first user's key."""
    # The worker was started at the same moment as this process.
    settings, started_at = Settings(), now() - timedelta(seconds=age_of(str(os.getpid())))
    if not _becomes_ready(local_url(settings)):
        text = f"The API is not ready after {DEADLINE_SECONDS:.0f} s; see its log above for the cause."
        sys.exit(f"{text} {more('the-api-is-not-ready-after-120-s')}")
    problem = _await_node(settings, started_at) if WORKER in arguments else None
    print(_banner(settings, problem), flush=True)


def _becomes_ready(url: str) -> bool:
    end = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < end:
        if is_ready(url):
            return True
        time.sleep(PAUSE_SECONDS)
    return False


def _await_node(settings: Settings, started_at: datetime) -> str | None:
    """Wait until this machine's node takes sandboxes; return why it does not. None: it does."""
    end = time.monotonic() + NODE_SECONDS
    try:
        while (problem := _find_problem(settings, started_at)) and time.monotonic() < end:
            time.sleep(PAUSE_SECONDS)
    except (WorkspaceError, StoreError) as error:
        cause = getattr(error, "orig", None) or error  # without the statement
        return f"its state is not known: {' '.join(str(cause).split())}"
    return f"it takes no new sandboxes: {problem}" if problem else None


def _find_problem(settings: Settings, started_at: datetime) -> str | None:
    with LocalInstallation(settings).reading() as session:
        node = session.get(Node, WorkerSettings().node)
    # Until then, the row has the state from before the start.
    if node is None or (node.detail is None and node.heartbeat_at < started_at):
        return "its worker has sent no heartbeat since the start; see its log above"
    return placement.find_obstacle(node)


def _banner(settings: Settings, problem: str | None) -> str:
    key = settings.admin_key_file
    lines = [
        *(["Agent Workspace runs, but its node is not ready", f"  Node     {problem}"] if problem else [READY]),
        f"  API      {settings.public_url}   (its description: {settings.public_url}/docs)",
        f"  Admin    {settings.public_url}/admin   (for users with the role admin; Flower is below it)",
        f"  API key  {key.read_text().strip()}   (kept in {key})" if key.exists() else f"  API key  not in {key}",
        "  Ctrl-C stops it; sandboxes stay as they are.",
    ]
    rule = "─" * min(WIDTH, max(len(line) for line in lines))
    return "\n".join(["", rule, *lines, rule, ""])


if __name__ == "__main__":
    main(sys.argv[1:])
