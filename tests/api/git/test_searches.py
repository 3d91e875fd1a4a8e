"""Searches at git providers: they list all items in V1's shape, page by page."""

from base64 import urlsafe_b64encode
from collections.abc import Callable
from typing import Any

import pytest

from tests.factories import ApiUser
from tests.fakes.git_host import FakeGitHost
from tests.fakes.git_requests import BRANCHES, NAMES, PERSONAL_TOKEN, PLACES
from tests.fixtures.git_host import PROVIDERS

Ask = Callable[..., Any]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_defect_39_pages_have_each_item_exactly_once(connect: Ask, walk: Ask, user: ApiUser, provider: str) -> None:
    connect(user, provider)
    for limit in (1, 2, 3, 100):
        found = walk(user, "repositories", provider=provider, limit=limit)
        assert [item["full_name"].rpartition("/")[2] for item in found] == NAMES, limit
        assert {item["git_provider"] for item in found} == {provider}
        for query, names in (("", BRANCHES), ("feature", BRANCHES[1:3])):
            listed = walk(user, "branches", provider=provider, repository="acme/app", query=query, limit=limit)
            assert [item["name"] for item in listed] == names, limit
            assert [item["commit_sha"] for item in listed] == [f"sha-{name}" for name in names]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_repository_has_v1_s_shape(connect: Ask, send: Ask, user: ApiUser, provider: str) -> None:
    connect(user, provider)
    found = send(user, "repositories", provider=provider, limit=2).json()["items"][1]
    assert found.keys() == {
        "id",
        "full_name",
        "git_provider",
        "is_public",
        "stargazers_count",
        "link_header",
        "pushed_at",
        "owner_type",
        "main_branch",
    }
    assert found["is_public"] is True
    assert isinstance(found["id"], str)
    assert found["main_branch"] == (None if provider == "bitbucket_data_center" else "main")
    assert found["full_name"] == ("acme/shop/app1" if provider == "azure_devops" else "acme/app1")


@pytest.mark.parametrize("provider", PROVIDERS)
def test_repositories_are_searched(connect: Ask, walk: Ask, user: ApiUser, provider: str) -> None:
    connect(user, provider)
    for order in ("stars-desc", "forks-asc", "updated-desc"):
        found = walk(user, "repositories", provider=provider, query="app5", sort_order=order, limit=2)
        assert [item["full_name"].rpartition("/")[2] for item in found] == ["app5"]
    assert walk(user, "repositories", provider=provider, query="nothing", limit=2) == []


def test_search_at_github_names_its_owners(connect: Ask, send: Ask, user: ApiUser, git_host: FakeGitHost) -> None:
    connect(user, "github")
    for query, owners in (("app", "user:@me org:acme org:umbrella"), ("other/app", "user:other")):
        assert send(user, "repositories", provider="github", query=query).status_code == 200
        assert git_host.got[-1].query["q"] == f"app in:name fork:true {owners}"


@pytest.mark.parametrize("provider", ["bitbucket", "bitbucket_data_center", "github", "gitlab"])
def test_repository_is_found_by_its_full_name(connect: Ask, walk: Ask, user: ApiUser, provider: str) -> None:
    connect(user, provider)
    for query, names in (("acme/app3", ["acme/app3"]), ("other/app3", [])):
        found = walk(user, "repositories", provider=provider, query=query, limit=100)
        assert [item["full_name"] for item in found] == names


def test_branches_of_a_repository_with_blanks_in_its_name(connect: Ask, walk: Ask, user: ApiUser) -> None:
    connect(user, "azure_devops")
    found = walk(user, "branches", provider="azure_devops", repository="acme/My Team/My app", query="", limit=100)
    assert [item["name"] for item in found] == BRANCHES


@pytest.mark.parametrize("provider", PROVIDERS)
def test_any_text_is_a_valid_query(connect: Ask, send: Ask, user: ApiUser, provider: str) -> None:
    connect(user, provider)
    for query in ("API version", "two\nlines", "%25N%09", 'a "quoted" word', "acme/", "\U000bcb2c"):
        for path, more in (("repositories", {}), ("branches", {"repository": "acme/app"})):
            assert send(user, path, provider=provider, query=query, **more).status_code == 200, query


@pytest.mark.parametrize("provider", sorted(set(PROVIDERS) - {"gitlab", "forgejo"}))
def test_installations_are_listed(connect: Ask, walk: Ask, user: ApiUser, provider: str) -> None:
    connect(user, provider)
    installations = ["0", "1", "2"] if provider == "github" else PLACES
    for limit in (1, 2, 100):
        assert walk(user, "installations", provider=provider, limit=limit) == installations
    chosen = {"github": "1", "azure_devops": "beta"}.get(provider, "acme")
    found = walk(user, "repositories", provider=provider, installation_id=chosen, limit=2)
    assert len(found) == (5 if provider == "bitbucket" else 3)


def test_personal_token_of_github_has_one_installation_with_all_repositories(
    connect: Ask, send: Ask, walk: Ask, user: ApiUser, git_host: FakeGitHost
) -> None:
    connect(user, "github", token=PERSONAL_TOKEN)
    [installation] = walk(user, "installations", provider="github", limit=1)
    found = walk(user, "repositories", provider="github", installation_id=installation, limit=2)
    assert [item["full_name"].rpartition("/")[2] for item in found] == NAMES
    git_host.instead = (403, {"X-RateLimit-Remaining": "0"}, {})
    assert send(user, "installations", provider="github").status_code == 503


@pytest.mark.parametrize("provider", ["gitlab", "forgejo"])
def test_request_for_installations_of_a_provider_without_them_is_a_400(
    connect: Ask, send: Ask, user: ApiUser, provider: str
) -> None:
    connect(user, provider)
    response = send(user, "installations", provider=provider)
    assert (response.status_code, provider in response.json()["detail"]) == (400, True)


def test_suggested_tasks_come_from_all_providers(
    connect: Ask, send: Ask, walk: Ask, user: ApiUser, git_host: FakeGitHost, other_user: ApiUser
) -> None:
    for provider in PROVIDERS:
        connect(user, provider)
    found = walk(user, "suggested-tasks", limit=2)
    kinds = ["MERGE_CONFLICTS", "FAILING_CHECKS", "UNRESOLVED_COMMENTS"]
    known = {
        name: [(task["task_type"], task["issue_number"]) for task in found if task["git_provider"] == name]
        for name in PROVIDERS
    }
    issue = ("OPEN_ISSUE", 5)
    all_tasks = [*((kind, number) for number, kind in enumerate(kinds, 1)), issue]
    nothing: Any = {"bitbucket": [], "bitbucket_data_center": [], "azure_devops": []}
    assert known == nothing | {"github": all_tasks, "gitlab": all_tasks, "forgejo": [issue]}
    assert {task["repo"] for task in found} == {"acme/app", "acme/group/app"}
    # A failing provider does not hide the others.
    connect(user, "gitlab", token="expired")
    assert {task["git_provider"] for task in walk(user, "suggested-tasks", limit=100)} == {"github", "forgejo"}
    connect(other_user, "gitlab", token="expired")
    assert send(other_user, "suggested-tasks").status_code == 403
    git_host.instead = (500, {}, {})
    assert send(user, "suggested-tasks").status_code == 502


@pytest.mark.parametrize("provider", PROVIDERS)
def test_page_id_belongs_to_one_list_and_one_limit(connect: Ask, send: Ask, user: ApiUser, provider: str) -> None:
    connect(user, provider)
    page_id = send(user, "repositories", provider=provider, limit=2).json()["next_page_id"]
    known = {"provider": provider, "page_id": page_id}
    assert send(user, "repositories", **known, limit=2).status_code == 200
    response = send(user, "repositories", **known, limit=3)
    assert (response.status_code, "limit" in response.json()["detail"]) == (400, True)
    branches = send(user, "branches", **known, limit=2, repository="acme/app", query="")
    assert (branches.status_code, "page_id" in branches.json()["detail"]) == (400, True)


STARTS = ["-1", "0", "1e3", '"x"', "[]", "{}", "true", "[1]", '[0, "x"]', "[-1, 1]", "9" * 30, "[[], 1]", '"\\ud800"']


@pytest.mark.parametrize("provider", PROVIDERS)
def test_foreign_page_ids_are_refused(connect: Ask, send: Ask, user: ApiUser, provider: str) -> None:
    connect(user, provider)
    requested: tuple[tuple[str, dict[str, str]], ...] = (
        ("repositories", {}),
        ("branches", {"repository": "acme/app", "query": "feature"}),
        ("branches", {"repository": "acme/app", "query": ""}),
    )
    for what, params in requested:
        for start in STARTS:
            page_id = urlsafe_b64encode(f'["{provider}/{what}",2,{start}]'.encode()).decode().rstrip("=")
            response = send(user, what, provider=provider, limit=2, page_id=page_id, **params)
            expected = status_at(provider, what, start, searched=bool(params.get("query")))
            assert response.status_code == expected, (what, start, response.text)


def status_at(provider: str, what: str, start: str, *, searched: bool) -> int:
    """The status of the response to a page id with this position; 400 for nearly all."""
    is_branches = what == "branches"
    counts_rows = {"bitbucket_data_center": True, "azure_devops": not is_branches, "forgejo": is_branches and searched}
    if start == "0" and counts_rows.get(provider):
        return 200  # positions are row numbers, from zero
    if start == '"x"' and is_branches and (provider == "azure_devops" or (provider == "github" and searched)):
        return 502  # the provider's own cursor, which it refuses
    return 400


def test_wrong_parameters_are_refused(connect: Ask, send: Ask, user: ApiUser) -> None:
    connect(user, "github")
    for what, params, status in (
        ("repositories", {}, 422),
        ("repositories", {"provider": "sourceforge"}, 422),
        ("repositories", {"provider": "github", "sort_order": "stars-desc"}, 400),
        ("repositories", {"provider": "github", "query": "x", "sort_order": "best"}, 422),
        ("branches", {"provider": "github", "repository": "acme/app"}, 422),
        ("branches", {"provider": "github", "query": "x"}, 422),
        ("branches", {"provider": "github", "repository": "../..", "query": ""}, 422),
        ("branches", {"provider": "github", "repository": "acme/none", "query": ""}, 404),
        ("branches", {"provider": "github", "repository": "acme/none", "query": "x"}, 404),
        ("installations", {"provider": "enterprise_sso"}, 400),
    ):
        assert send(user, what, **params).status_code == status, (what, params)


def test_tasks_of_organizations_that_deny_access_to_the_token_are_left_out(
    connect: Ask, send: Ask, user: ApiUser, git_host: FakeGitHost
) -> None:
    """GitHub has null in the place of what the token may not read, such as that of an organization with SAML."""
    connect(user, "github")
    issue = {"number": 5, "title": "i", "repository": {"nameWithOwner": "acme/app"}}
    data = {"viewer": {"pullRequests": {"nodes": [None]}}, "search": {"nodes": [None, issue]}}
    git_host.instead = (200, {}, {"data": data, "errors": [{"type": "FORBIDDEN"}]})
    response = send(user, "suggested-tasks")
    assert (response.status_code, [task["issue_number"] for task in response.json()["items"]]) == (200, [5])
