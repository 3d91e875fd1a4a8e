"""`python -m tests.bench.bare PORT`: an application with one route, which returns the last bytes that it received.

It is the baseline of lists: the least that FastAPI must do for a response, with the API's own server settings.
"""

import sys

import uvicorn
from fastapi import FastAPI, Request, Response

from api.__main__ import KEEPALIVE_SECONDS
from api.server.graceful import DrainingServer
from api.server.sockets import BACKLOG

app = FastAPI()


@app.get("/bytes")
async def get_bytes() -> Response:
    """Return the bytes."""
    return Response(app.state.content, media_type="application/json")


@app.put("/bytes")
async def put_bytes(request: Request) -> None:
    """Store the bytes."""
    app.state.content = await request.body()


def main(port: int) -> None:
    """Serve until interrupted."""
    app.state.content = b""
    config = uvicorn.Config(
        app,
        port=port,
        log_config=None,
        access_log=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEPALIVE_SECONDS,
        timeout_graceful_shutdown=10,
        server_header=False,
    )
    DrainingServer(config, lambda: None).run()


if __name__ == "__main__":
    main(int(sys.argv[1]))
