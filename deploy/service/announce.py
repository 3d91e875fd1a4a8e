"""`python -m deploy.service.announce`: print the service's address as soon as it is ready."""

import sys
import time
import urllib.request

from deploy.service.ports import ANY_ADDRESS
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


def local_url(settings: Settings) -> str:
    """The API's URL on this machine."""
    address = ANY_ADDRESS.get(settings.host, settings.host)
    return f"http://[{address}]:{settings.port}" if ":" in address else f"http://{address}:{settings.port}"


def is_ready(url: str) -> bool:
    """Whether the API at this URL is ready, within seconds."""
    # The API on this machine is reached without a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(f"{url}/ready", timeout=2).close()
    except OSError:
        return False
    return True


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
