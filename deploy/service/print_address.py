"""`python -m deploy.service.print_address`: print the service's address as soon as it is ready."""

import sys
import time

from deploy.service.health import is_ready, local_url
from shared.reasons import more
from shared.settings import Settings

DEADLINE_SECONDS = 120.0
PAUSE_SECONDS = 0.2


def main() -> None:
    """Wait for the API to be ready, and print its URL and the first user's key."""
    settings = Settings()
    if not _becomes_ready(local_url(settings)):
        text = f"The API is not ready after {DEADLINE_SECONDS:.0f} s; see its log above for the cause."
        sys.exit(f"{text} {more('the-api-is-not-ready-after-120-s')}")
    print(_banner(settings), flush=True)


def _becomes_ready(url: str) -> bool:
    end = time.monotonic() + DEADLINE_SECONDS
    while time.monotonic() < end:
        if is_ready(url):
            return True
        time.sleep(PAUSE_SECONDS)
    return False


def _banner(settings: Settings) -> str:
    key = settings.admin_key_file
    lines = [
        "Agent Workspace is ready",
        f"  API      {settings.public_url}   (its description: {settings.public_url}/docs)",
        f"  Admin    {settings.public_url}/admin   (for users with the role admin; Flower is below it)",
        f"  API key  {key.read_text().strip()}   (kept in {key})" if key.exists() else f"  API key  not in {key}",
        "  Ctrl-C stops it; sandboxes stay as they are.",
    ]
    rule = "─" * max(len(line) for line in lines)
    return "\n".join(["", rule, *lines, rule, ""])


if __name__ == "__main__":
    main()
