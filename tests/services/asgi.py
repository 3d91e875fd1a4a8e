"""An ASGI application behind a real server, in a thread of this process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from tests.waiting import eventually


@contextmanager
def serving(app: Any, **options: Any) -> Iterator[str]:
    """The server's address, for the length of the block."""
    config = uvicorn.Config(
        app,
        port=0,
        log_config=None,
        access_log=False,
        # What a test's client says of itself is not a proxy's word.
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        **options,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive(), interval_seconds=0.005)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
