"""Bitbucket Cloud (REST, 2.0). The API lists repositories by workspace only."""

from typing import Any, ClassVar

from api.git.provider import Found, GitProvider, Window, segments
from api.schemas.v1.git import Branch, Repository, SortOrder
from shared.errors import Invalid
from shared.sql.page_ids import FOREIGN_PAGE

MAX_WORKSPACES = 100
# The API has no order by stars or forks.
NEWEST = "-updated_on"


class Bitbucket(GitProvider):
    """A client of bitbucket.org."""

    name: ClassVar[str] = "bitbucket"

    @property
    def root(self) -> str:
        """The URL of the API."""
        return "https://api.bitbucket.org/2.0" if self.is_default else f"{self.host}{self.folder}/2.0"

    @property
    def authorization(self) -> str:
        """Basic authentication for an app password, which is stored as `user:password`; else a bearer token."""
        return self.basic(self._token) if ":" in self._token else super().authorization

    async def installations(self, window: Window) -> Found[str]:
        """List the user's workspaces."""
        document = self.read_object(await self.get("/user/workspaces", pagelen=window.size, page=window.number))
        slugs = self.read(document.get("values"), lambda item: str(item.get("workspace", item)["slug"]))
        return Found(slugs, window.number + 1 if document.get("next") else None)

    async def repositories(self, window: Window, installation: str | None) -> Found[Repository]:
        """List the repositories of one workspace, or of all, one workspace after the other."""
        return await self._repositories(window, installation, None, NEWEST)

    async def search(self, window: Window, query: str, order: SortOrder) -> Found[Repository]:
        """Search by name, in the workspace before a slash in `query`, or in all workspaces."""
        workspace, slash, name = query.rpartition("/")
        direction = "" if order.direction == "asc" else "-"
        condition = f"name ~ {_quoted(name)}"
        return await self._repositories(window, workspace if slash else None, condition, f"{direction}updated_on")

    async def branches(self, window: Window, repository: str, query: str) -> Found[Branch]:
        """List the branches whose names contain `query`."""
        condition = f"name ~ {_quoted(query)}" if query else None
        path = f"/repositories/{segments(repository)}/refs/branches"
        document = self.read_object(await self.get(path, q=condition, pagelen=window.size, page=window.number))
        items = self.read(document.get("values"), _branch)
        return Found(items, window.number + 1 if document.get("next") else None)

    async def _repositories(
        self, window: Window, workspace: str | None, condition: str | None, order: str
    ) -> Found[Repository]:
        # A page never spans two workspaces. Without `workspace`, empty workspaces are skipped.
        named = [] if workspace is None else [workspace]
        workspaces = named or (await self.installations(Window(MAX_WORKSPACES))).items
        position, page = _read_position(window.start)
        while position < len(workspaces):
            path = f"/repositories/{segments(workspaces[position])}"
            params = {"role": "member", "q": condition, "sort": order, "pagelen": window.size, "page": page}
            document = self.read_object(await self.get(path, **params))
            items = self.read(document.get("values"), self._repository)
            following = [position, page + 1] if document.get("next") else [position + 1, 1]
            if items:
                return Found(items, following if following[0] < len(workspaces) else None)
            position, page = following
        return Found([])

    def _repository(self, item: Any) -> Repository:
        return Repository(
            id=str(item["uuid"]),
            full_name=item["full_name"],
            git_provider=self.name,
            is_public=not item.get("is_private", True),
            pushed_at=item.get("updated_on"),
            owner_type="organization",
            main_branch=(item.get("mainbranch") or {}).get("name"),
        )


def _branch(item: Any) -> Branch:
    target = item["target"]
    return Branch(name=item["name"], commit_sha=target["hash"], protected=False, last_push_date=target.get("date"))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _read_position(start: Any) -> tuple[int, int]:
    if start is None:
        return 0, 1
    if not isinstance(start, list) or len(start) != 2:
        raise Invalid(FOREIGN_PAGE)
    return Window(1, start[0]).count(0), Window(1, start[1]).count(1)
