"""The check of the node's door by its worker."""

import httpx

from shared.agent_server.errors import DoorUnavailable

# Timeout of a check. A heartbeat waits for it.
SECONDS = 3.0


def find_door_trouble(client: httpx.Client, url: str) -> str | None:
    """Return why this node's door can't be used; None: it responds.

    Args:
        client: as opened by `worker.agent_server.transport`: it raises the door's own responses.
        url: the door's.
    """
    try:
        client.get(f"{url}/", timeout=SECONDS)
    except DoorUnavailable:  # it rejects a path that leads to no sandbox
        return None
    except httpx.HTTPError as error:
        return f"the node's door at {url} does not respond: {type(error).__name__}"
    return f"another server than the node's door responds at {url}"
