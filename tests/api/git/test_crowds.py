"""A user's hosts that do not respond do not delay the searches of other users."""

import asyncio
import contextvars
import socket
import threading
from collections.abc import Coroutine, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from api.errors.upstream import UpstreamUnreachable
from api.git.guarded_transport import MAX_CONNECTIONS
from api.git.http_client import GitClient, Reply
from shared.sql.write_slots import caller


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make lookups of names below `slow.example` hang, and lookups of all other names fail."""
    ended = threading.Event()

    def look_up(host: str, *_: Any, **__: Any) -> Any:
        if host.endswith("slow.example"):
            ended.wait(60)
        raise socket.gaierror("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield
    ended.set()


def start_request(client: GitClient, user: str, url: str) -> "asyncio.Task[Reply]":
    """Start a request of a user."""
    context = contextvars.copy_context()
    context.run(caller.set, user)
    work: Coroutine[Any, Any, Reply] = client.request("github", "GET", url)
    return asyncio.get_running_loop().create_task(work, context=context)


async def first_of(own: "asyncio.Task[Reply]", crowd: list["asyncio.Task[Reply]"]) -> bool:
    """Whether the request ends before any of the others, which are then cancelled."""
    done, _ = await asyncio.wait({own, *crowd}, return_when=asyncio.FIRST_COMPLETED)
    for task in crowd:
        task.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    return done == {own}


def test_unresponsive_host_delays_no_request_to_another_host(git_url: str) -> None:
    async def run(host: str) -> None:
        client = GitClient(frozenset({host, urlsplit(git_url).netloc}))
        crowd = [start_request(client, "a", f"http://{host}/") for _ in range(2 * MAX_CONNECTIONS)]
        await asyncio.sleep(0)
        assert await first_of(start_request(client, "b", git_url), crowd)
        await client.close()

    with socket.create_server(("127.0.0.1", 0), backlog=2 * MAX_CONNECTIONS) as server:
        asyncio.run(run("{}:{}".format(*server.getsockname())))


@pytest.mark.usefixtures("held")
def test_slow_name_lookups_delay_no_request_of_another_user() -> None:
    async def run() -> None:
        client = GitClient(frozenset())
        crowd = [start_request(client, "a", f"https://{number}.slow.example/") for number in range(40)]
        await asyncio.sleep(0)
        own = start_request(client, "b", "https://none.example/")
        assert await first_of(own, crowd)
        with pytest.raises(UpstreamUnreachable):
            await own
        await client.close()

    asyncio.run(run())
