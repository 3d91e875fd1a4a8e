"""Azure DevOps (REST, 7.1). The stored host includes the organization: `dev.azure.com/acme`."""

from typing import Any, ClassVar

from api.git.provider import Found, GitProvider, Window, segments
from api.schemas.v1.git import Branch, Repository, SortOrder
from shared.errors import Forbidden, Invalid

VERSION = {"api-version": "7.1"}
# The API sends all repositories at once. Only their names are read before the page is cut out.
MAX_REPOSITORIES = 20_000
HEADS = "refs/heads/"


class AzureDevOps(GitProvider):
    """A client of dev.azure.com, or of a self-hosted server."""

    name: ClassVar[str] = "azure_devops"

    @property
    def root(self) -> str:
        """The URL of the organization's API.

        Raises:
            Forbidden: the stored host names no organization.
        """
        if not self.folder:
            raise Forbidden("store the host of azure_devops with its organization: dev.azure.com/<organization>")
        return f"{self.host}{self.folder}"

    @property
    def authorization(self) -> str:
        """Basic authentication for a personal token, else bearer: a token of Microsoft's login service has two dots."""
        return super().authorization if self._token.count(".") == 2 else self.basic(f":{self._token}")

    async def installations(self, window: Window) -> Found[str]:
        """List the organization's projects."""
        skipped = window.count(0)
        params = {"$top": window.size, "$skip": skipped, **VERSION}
        values = await self._values("/_apis/projects", params)
        names = self.read(values, lambda item: str(item["name"]))
        return Found(names, skipped + len(values) if len(values) == window.size else None)

    async def repositories(self, window: Window, installation: str | None) -> Found[Repository]:
        """List repositories. The API does not divide the list into pages, so this method does."""
        return self._slice(await self._all(installation), window)

    async def search(self, window: Window, query: str, order: SortOrder) -> Found[Repository]:
        """Search repositories by name, ordered by name: the API has no other order."""
        found = [(name, item) for name, item in await self._all(None) if query.lower() in name.lower()]
        return self._slice(found, window)

    async def branches(self, window: Window, repository: str, query: str) -> Found[Branch]:
        project, name = _split(repository)
        path = f"/{segments(project)}/_apis/git/repositories/{segments(name)}/refs"
        params = {
            "filter": "heads/",
            "filterContains": query or None,
            "$top": window.size,
            "continuationToken": window.cursor,
        }
        reply = await self.get(path, **params, **VERSION)
        items = self.read(self.read_object(reply).get("value"), _branch)
        return Found(items, reply.headers.get("X-MS-ContinuationToken") or None)

    async def _all(self, project: str | None) -> list[tuple[str, Any]]:
        """The organization's repositories, or those of one project: full names and items, ordered by name."""
        folder = "" if project is None else f"/{segments(project)}"
        values = await self._values(f"{folder}/_apis/git/repositories", VERSION)
        named = self.read(values, lambda item: (self._full_name(item), item), max_items=MAX_REPOSITORIES)
        return sorted(named, key=lambda each: each[0].lower())

    async def _values(self, path: str, params: dict[str, Any]) -> Any:
        return self.read_object(await self.get(path, **params)).get("value")

    def _slice(self, found: list[tuple[str, Any]], window: Window) -> Found[Repository]:
        first = window.count(0)
        last = first + window.size
        items = self.read([item for _, item in found[first:last]], self._repository)
        return Found(items, last if last < len(found) else None)

    def _full_name(self, item: Any) -> str:
        organization = self.folder.strip("/").rpartition("/")[2]
        return f"{organization}/{item['project']['name']}/{item['name']}"

    def _repository(self, item: Any) -> Repository:
        return Repository(
            id=str(item["id"]),
            full_name=self._full_name(item),
            git_provider=self.name,
            is_public=item["project"].get("visibility") == "public",
            owner_type="organization",
            main_branch=(item.get("defaultBranch") or "").removeprefix(HEADS) or None,
        )


def _split(repository: str) -> tuple[str, str]:
    # `organization/project/name`, or `project/name`
    parts = repository.split("/")
    if len(parts) < 2:
        raise Invalid("a repository of azure_devops must be organization/project/name")
    return parts[-2], parts[-1]


def _branch(item: Any) -> Branch:
    return Branch(name=item["name"].removeprefix(HEADS), commit_sha=item["objectId"], protected=False)
