"""`python -m deploy.service.health`: whether this machine's API is ready, as its exit status. It imports little."""

import sys
import urllib.request

from shared.settings import Settings

ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - compared, not bound


def local_url(settings: Settings) -> str:
    """The API's URL on this machine."""
    address = ANY_ADDRESS.get(settings.host, settings.host)
    return f"http://[{address}]:{settings.port}" if ":" in address else f"http://{address}:{settings.port}"


def is_ready(url: str, seconds: float = 2) -> bool:
    """Whether the API at this URL is ready within so many seconds."""
    # The API on this machine is reached without a proxy.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        opener.open(f"{url}/ready", timeout=seconds).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(not is_ready(local_url(Settings()), seconds=20))
