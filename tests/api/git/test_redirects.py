"""Redirects of a git host: of a renamed repository, to other hosts, and without end."""

from collections.abc import Callable
from typing import Any

import pytest

from api.git.http_client import MAX_REDIRECTS
from tests.factories import ApiUser
from tests.fakes.git_host import FakeGitHost
from tests.fakes.git_requests import BRANCHES, TOKEN, GitRequest, Reply

Ask = Callable[..., Any]
FORMER = "/api/v3/repos/acme/former/branches"


@pytest.fixture
def search(
    connect: Ask, send: Ask, user: ApiUser, git_host: FakeGitHost, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Any]:
    """Search the branches of a renamed repository at GitHub, which redirects to the location."""
    connect(user, "github")
    respond = git_host.respond

    def search(location: str) -> Any:
        def reply(request: GitRequest) -> Reply:
            return (301, {"Location": location}, {}) if request.path == FORMER else respond(request)

        monkeypatch.setattr(git_host, "respond", reply)
        return send(user, "branches", provider="github", repository="acme/former", query="")

    return search


@pytest.mark.parametrize("origin", ["{url}", ""], ids=("whole", "relative"))
def test_branches_of_a_renamed_repository_are_listed(
    search: Callable[[str], Any], git_url: str, git_host: FakeGitHost, origin: str
) -> None:
    response = search(f"{origin.format(url=git_url)}/api/v3/repos/acme/app/branches?per_page=2&page=1")
    assert response.status_code == 200, response.text
    assert [branch["name"] for branch in response.json()["items"]] == BRANCHES[:2]
    assert git_host.got[-1].authorization == f"Bearer {TOKEN}"


LOCATIONS = ["http://127.0.0.1:1/", "https://{host}/", "http://user@{host}/", "http://[", "http://\u00e9.example:x/"]


@pytest.mark.parametrize("location", LOCATIONS)
def test_redirect_to_another_host_is_a_502(
    search: Callable[[str], Any], git_url: str, git_host: FakeGitHost, location: str
) -> None:
    assert search(location.format(host=git_url.rpartition("/")[2])).status_code == 502
    assert len(git_host.got) == 1


def test_redirects_without_end_are_a_502(search: Callable[[str], Any], git_host: FakeGitHost) -> None:
    assert search(FORMER).status_code == 502
    assert len(git_host.got) == 1 + MAX_REDIRECTS
