"""Forgejo and Gitea (REST, v1)."""

from typing import Any, ClassVar

from api.git.provider import Found, GitProvider, Window, drop_none, segments
from api.schemas.v1.git import Branch, Repository, SortOrder
from api.schemas.v1.suggested_tasks import SuggestedTask, TaskType

# The API can't search branches: a search reads at most this number of pages.
MAX_PAGES = 5
PAGE_SIZE = 50


class Forgejo(GitProvider):
    """A client of codeberg.org, or of a self-hosted server."""

    name: ClassVar[str] = "forgejo"
    has_tasks: ClassVar[bool] = True

    @property
    def root(self) -> str:
        return f"{self.host}{self.folder}/api/v1"

    @property
    def authorization(self) -> str:
        """Forgejo's own scheme."""
        return f"token {self._token}"

    async def repositories(self, window: Window, installation: str | None) -> Found[Repository]:
        """List the repositories that the user owns or has access to."""
        reply = await self.get("/user/repos", limit=window.size, page=window.number)
        return self.read_page(reply, window, reply.require_document(), self._repository)

    async def search(self, window: Window, query: str, order: SortOrder) -> Found[Repository]:
        """Search all repositories that the token can read."""
        params = {"limit": window.size, "page": window.number, "sort": order.key, "order": order.direction}
        reply = await self.get("/repos/search", q=query, **params)
        return self.read_page(reply, window, self.read_object(reply).get("data"), self._repository)

    async def branches(self, window: Window, repository: str, query: str) -> Found[Branch]:
        """List branches. With `query`, only the first `MAX_PAGES * PAGE_SIZE` branches are searched."""
        if not query:
            return await self._branches(repository, window)
        matching, start = await self._matching(repository, query), window.count(0)
        end = start + window.size
        return Found(matching[start:end], end if end < len(matching) else None)

    async def tasks(self) -> list[SuggestedTask]:
        """List the open issues that are assigned to the user."""
        reply = await self.get("/repos/issues/search", type="issues", state="open", assigned="true", limit=PAGE_SIZE)
        return drop_none(self.read(reply.require_document(), self._task))

    async def _branches(self, repository: str, window: Window) -> Found[Branch]:
        reply = await self.get(f"/repos/{segments(repository)}/branches", limit=window.size, page=window.number)
        return self.read_page(reply, window, reply.require_document(), _branch)

    async def _matching(self, repository: str, query: str) -> list[Branch]:
        matching: list[Branch] = []
        window = Window(PAGE_SIZE)
        for _ in range(MAX_PAGES):
            found = await self._branches(repository, window)
            matching += [branch for branch in found.items if query.lower() in branch.name.lower()]
            if found.following is None:
                break
            window = Window(PAGE_SIZE, found.following)
        return matching

    def _repository(self, item: Any) -> Repository:
        return Repository(
            id=str(item["id"]),
            full_name=item["full_name"],
            git_provider=self.name,
            is_public=not item.get("private", True),
            stargazers_count=item.get("stars_count"),
            pushed_at=item.get("updated_at"),
            main_branch=item.get("default_branch"),
        )

    def _task(self, item: Any) -> SuggestedTask | None:
        return self.task(TaskType.OPEN_ISSUE, item["repository"]["full_name"], item["number"], item["title"])


def _branch(item: Any) -> Branch:
    return Branch(
        name=item["name"],
        commit_sha=item["commit"]["id"],
        protected=bool(item.get("protected")),
        last_push_date=item["commit"].get("timestamp"),
    )
