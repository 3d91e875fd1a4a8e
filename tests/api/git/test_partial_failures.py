"""Failures that are no failure of a whole response: of one workspace, and of GraphQL in a success."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.factories import ApiUser
from tests.fakes.git_host import FakeGitHost
from tests.fakes.git_requests import NAMES, GitRequest, Reply

Ask = Callable[..., Any]

REFUSALS = {"acme": 403, "beta": 404}


@pytest.fixture
def refuse(git_host: FakeGitHost, monkeypatch: pytest.MonkeyPatch) -> Callable[[dict[str, int]], None]:
    """Let the host refuse the repositories of workspaces, each with a status."""
    respond = git_host.respond

    def refuse(statuses: dict[str, int]) -> None:
        def reply(request: GitRequest) -> Reply:
            status = statuses.get(request.path.rpartition("/")[2])
            return (status, {}, {}) if status else respond(request)

        monkeypatch.setattr(git_host, "respond", reply)

    return refuse


@pytest.mark.parametrize("params", [{}, {"query": "app"}], ids=("list", "search"))
def test_workspace_that_refuses_the_token_hides_no_other(
    connect: Ask, walk: Ask, user: ApiUser, refuse: Any, params: dict[str, str]
) -> None:
    connect(user, "bitbucket")
    refuse(REFUSALS)
    found = walk(user, "repositories", provider="bitbucket", limit=2, **params)
    assert [item["full_name"] for item in found] == [f"gamma/{name}" for name in NAMES[5:]]


def test_token_that_all_workspaces_refuse_is_a_403(connect: Ask, send: Ask, user: ApiUser, refuse: Any) -> None:
    connect(user, "bitbucket")
    refuse({"acme": 404, "beta": 404, "gamma": 403})
    assert send(user, "repositories", provider="bitbucket").status_code == 403
    assert send(user, "repositories", provider="bitbucket", installation_id="acme").status_code == 404


@pytest.mark.parametrize("kind", ["RATE_LIMITED", "RATE_LIMIT"])
def test_rate_limit_of_graphql_is_a_503(
    connect: Ask, send: Ask, user: ApiUser, git_host: FakeGitHost, kind: str
) -> None:
    connect(user, "github")
    errors = [{"type": kind, "message": "API rate limit exceeded"}]
    git_host.instead = (200, {"Retry-After": "7"}, {"data": None, "errors": errors})
    for what, params in (
        ("suggested-tasks", {}),
        ("branches", {"provider": "github", "repository": "acme/app", "query": "x"}),
    ):
        response = send(user, what, **params)
        assert (response.status_code, response.headers.get("Retry-After")) == (503, "7"), response.text
