"""Downloads count against the limits of their user and of the process until their responses have ended."""

import asyncio

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.limits.concurrency import ConcurrencyLimit
from api.limits.process import ProcessLimits
from api.request.context import Context
from shared.models import Conversation
from tests.api.asgi_requests import AsgiRequest, body_of
from tests.api.limits.test_held_at_once import until
from tests.factories import ApiUser

LIMIT = 3
DOWNLOAD = "/api/v1/app-conversations/{}/download"


def test_download_over_the_limit_is_refused_until_one_ends(
    context: Context, user: ApiUser, conversation: Conversation
) -> None:
    context.limits.downloads = limit = ConcurrencyLimit("downloads", of_user=LIMIT, of_process=LIMIT + 1)

    async def run() -> list[int]:
        app, reads = create_app(context), [asyncio.Event() for _ in range(LIMIT + 2)]
        requests = [AsgiRequest("GET", DOWNLOAD.format(conversation.id), user.headers) for _ in reads]
        sent = [
            asyncio.create_task(request.run(app, body_of(b""), read))
            for request, read in zip(requests[:LIMIT], reads, strict=False)
        ]
        await until(lambda: all(request.status for request in requests[:LIMIT]))
        await requests[LIMIT].run(app, body_of(b""))
        reads[0].set()
        await sent[0]
        await requests[LIMIT + 1].run(app, body_of(b""))
        for read in reads:
            read.set()
        await asyncio.gather(*sent)
        assert b"limit of 3 downloads" in requests[LIMIT].body
        return [request.status for request in requests]

    assert asyncio.run(run()) == [*[200] * LIMIT, 429, 200]
    assert not limit._held


@pytest.mark.parametrize(
    "path",
    [
        DOWNLOAD,
        "/api/v1/app-conversations/{}/file?file_path=/x",
        "/api/conversations/{}/select-file?file=/x",
    ],
)
def test_archives_and_files_count_together(
    client: TestClient, user: ApiUser, other_user: ApiUser, conversation: Conversation, path: str
) -> None:
    limits: ProcessLimits = client.app.state.context.limits  # type: ignore[attr-defined]
    limits.downloads = ConcurrencyLimit("downloads", of_user=1, of_process=2)
    path = path.format(conversation.id)
    with limits.downloads.hold(user.id):
        response = client.get(path, headers=user.headers)
        assert (response.status_code, response.headers["Retry-After"]) == (429, "1")
        # The conversation is not the other user's, but that user has a place.
        assert client.get(path, headers=other_user.headers).status_code == 404
        with limits.downloads.hold("another"):
            assert client.get(path, headers=other_user.headers).status_code == 503
