"""Bitbucket Cloud (REST, 2.0). The API lists repositories by workspace only."""

import asyncio
from typing import Any, ClassVar

from api.errors.upstream import UpstreamNotFound, UpstreamTimeout
from api.git.provider import Found, GitProvider, Window, segments
from api.schemas.v1.git import Branch, Repository, SortOrder
from shared.errors import Forbidden, Invalid
from shared.sql.page_ids import FOREIGN_PAGE

MAX_WORKSPACES = 100
# The limits of a search, which requests one page after the other until one is not empty.
MAX_REQUESTS = 150
SEARCH_SECONDS = 60.0
# The API has no order by stars or forks.
NEWEST = "-updated_on"


class Bitbucket(GitProvider):
    """A client of bitbucket.org."""

    name: ClassVar[str] = "bitbucket"

    @property
    def root(self) -> str:
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
        condition = f"name ~ {_quoted(query)}" if query else None
        path = f"/repositories/{segments(repository)}/refs/branches"
        document = self.read_object(await self.get(path, q=condition, pagelen=window.size, page=window.number))
        items = self.read(document.get("values"), _branch)
        return Found(items, window.number + 1 if document.get("next") else None)

    async def _repositories(
        self, window: Window, workspace: str | None, condition: str | None, order: str
    ) -> Found[Repository]:
        try:
            async with asyncio.timeout(SEARCH_SECONDS):
                # A page never spans two workspaces.
                workspaces = await self._workspaces() if workspace is None else [workspace]
                return await self._first_page(window, workspaces, {"q": condition, "sort": order})
        except TimeoutError:
            raise UpstreamTimeout(f"{self.name} did not respond in time") from None

    async def _workspaces(self) -> list[str]:
        # A host may list more than it was asked for.
        return (await self.installations(Window(MAX_WORKSPACES))).items[:MAX_WORKSPACES]

    async def _first_page(self, window: Window, workspaces: list[str], params: dict[str, Any]) -> Found[Repository]:
        """The first page that is not empty, from the window's position on; an empty one after `MAX_REQUESTS`.

        A workspace that the token may not read has no repositories, unless this is so for all workspaces.
        """
        position, page = _read_position(window.start)
        items: list[Repository] = []
        refusals = 0
        for _ in range(MAX_REQUESTS):
            if items or position >= len(workspaces):
                break
            try:
                found = await self._page(workspaces[position], window.size, page, params)
            except (Forbidden, UpstreamNotFound):
                refusals += 1
                if refusals == len(workspaces):
                    raise
                found = Found([])
            items = found.items
            position, page = (position, page + 1) if found.following else (position + 1, 1)
        return Found(items, [position, page] if position < len(workspaces) else None)

    async def _page(self, workspace: str, size: int, page: int, params: dict[str, Any]) -> Found[Repository]:
        path = f"/repositories/{segments(workspace)}"
        document = self.read_object(await self.get(path, role="member", pagelen=size, page=page, **params))
        return Found(self.read(document.get("values"), self._repository), document.get("next"))

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
