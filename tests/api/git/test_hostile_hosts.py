"""A hostile git host of a user exhausts neither the memory nor the time of an API process."""

import asyncio
from urllib.parse import urlsplit

import pytest

from api.errors.upstream import Unreached
from api.git.http_client import GitClient
from tests.services.hostile_server import MODES, hostile


@pytest.mark.parametrize("mode", ["floods", "inflates", "crumbles", "promises", "large header"])
def test_response_without_bounds_is_refused(mode: str) -> None:
    async def run(url: str) -> None:
        client = GitClient(frozenset({urlsplit(url).netloc}))
        with pytest.raises(Unreached):
            await client.ask("github", "GET", url)
        await client.close()

    with hostile(MODES[mode]) as server:
        asyncio.run(run(server.url))
