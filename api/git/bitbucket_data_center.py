"""Bitbucket Data Center (REST, 1.0)."""

from collections.abc import Callable
from typing import Any, ClassVar

from api.git.provider import Found, GitProvider, Item, Window, segments
from api.schemas.v1.git import Branch, Repository, SortOrder
from shared.errors import Invalid


class BitbucketDataCenter(GitProvider):
    """A client of a self-hosted server."""

    name: ClassVar[str] = "bitbucket_data_center"

    @property
    def root(self) -> str:
        return f"{self.host}{self.folder}/rest/api/1.0"

    @property
    def authorization(self) -> str:
        """Basic authentication for a password, which is stored as `user:password`; else a bearer token."""
        return self.basic(self._token) if ":" in self._token else super().authorization

    async def installations(self, window: Window) -> Found[str]:
        """List the projects that the user can read."""
        return await self._page("/projects", window, lambda item: str(item["key"]))

    async def repositories(self, window: Window, installation: str | None) -> Found[Repository]:
        """List the repositories of one project, or all that the user can read."""
        path = "/repos" if installation is None else f"/projects/{segments(installation)}/repos"
        return await self._page(path, window, self._repository)

    async def search(self, window: Window, query: str, order: SortOrder) -> Found[Repository]:
        """Search by name, in the project whose key precedes a slash in `query`; in the API's only order."""
        project, slash, name = query.rpartition("/")
        return await self._page("/repos", window, self._repository, name=name, projectkey=project if slash else None)

    async def branches(self, window: Window, repository: str, query: str) -> Found[Branch]:
        """List the branches whose names contain `query`, newest changes first."""
        project, slash, name = repository.partition("/")
        if not slash:
            raise Invalid("a repository of bitbucket_data_center must be <project key>/<name>")
        path = f"/projects/{segments(project)}/repos/{segments(name)}/branches"
        return await self._page(path, window, _branch, filterText=query or None, orderBy="MODIFICATION")

    async def _page(self, path: str, window: Window, read: Callable[[Any], Item], **params: Any) -> Found[Item]:
        document = self.read_object(await self.get(path, limit=window.size, start=window.count(0), **params))
        following = None if document.get("isLastPage", True) else document.get("nextPageStart")
        return Found(self.read(document.get("values"), read), following)

    def _repository(self, item: Any) -> Repository:
        project = item["project"]
        return Repository(
            id=str(item["id"]),
            full_name=f"{project['key']}/{item['slug']}",
            git_provider=self.name,
            is_public=bool(item.get("public")),
            owner_type="user" if project.get("type") == "PERSONAL" else "organization",
        )


def _branch(item: Any) -> Branch:
    return Branch(name=item["displayId"], commit_sha=item["latestCommit"], protected=False)
