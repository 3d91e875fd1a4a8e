"""Failures that are no failure of a whole response: of one workspace, and of GraphQL in a success."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.factories import ApiUser
from tests.fakes.git_host import FakeGitHost
from tests.fakes.git_hub_and_lab import REQUEST
from tests.fakes.git_requests import NAMES, GitRequest, Reply
from tests.fixtures.git_host import PROVIDERS

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


# GraphQL has null, at any depth, in the place of what the token may not read.
COMMENTED = {"nodes": [None, {"state": "COMMENTED"}]}
REQUESTS: list[Any] = [
    REQUEST | {"number": 1, "reviews": None},
    REQUEST | {"number": 2, "reviews": COMMENTED, "commits": None},
    REQUEST | {"number": 3, "reviews": COMMENTED, "commits": {"nodes": [None, {"commit": None}]}},
    REQUEST | {"number": 4, "reviews": COMMENTED, "repository": None},
    REQUEST | {"number": 5, "reviews": {"nodes": None}, "mergeable": "CONFLICTING"},
]


@pytest.mark.parametrize(
    ("viewer", "search", "numbers"),
    [
        ({"pullRequests": {"nodes": REQUESTS}}, {"nodes": [REQUEST | {"number": 6}]}, [2, 3, 5, 6]),
        ({"pullRequests": {"nodes": REQUESTS}}, None, [2, 3, 5]),
        ({"pullRequests": None}, {"nodes": [REQUEST | {"number": 6, "repository": None}]}, []),
        (None, None, None),
    ],
    ids=["parts of requests", "no issues", "no requests", "nothing"],
)
def test_null_of_graphql_hides_no_other_task(
    connect: Ask, send: Ask, user: ApiUser, git_host: FakeGitHost, viewer: Any, search: Any, numbers: list[int] | None
) -> None:
    connect(user, "github")
    data = {"viewer": viewer, "search": search}
    git_host.instead = (200, {}, {"data": data, "errors": [{"type": "FORBIDDEN"}]})
    response = send(user, "suggested-tasks")
    assert response.status_code == (502 if numbers is None else 200), response.text
    assert [task["issue_number"] for task in response.json().get("items", ())] == (numbers or [])


NAMED = {"name": "main", "displayId": "main", "latestCommit": "1", "objectId": "1", "target": {"oid": "1", "hash": "1"}}
BRANCH = NAMED | {"commit": {"sha": "1", "id": "1"}}
ODD = BRANCH | {"commit": None, "target": None, "displayId": None, "objectId": None}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_odd_item_hides_no_other(connect: Ask, send: Ask, user: ApiUser, git_host: FakeGitHost, provider: str) -> None:
    connect(user, provider)
    plain, items = provider in ("github", "gitlab", "forgejo"), [ODD, BRANCH]
    git_host.instead = (200, {}, items if plain else {"values": items, "value": items})
    response = send(user, "branches", provider=provider, repository="acme/app", query="")
    assert (response.status_code, [item["name"] for item in response.json().get("items", ())]) == (200, ["main"])
