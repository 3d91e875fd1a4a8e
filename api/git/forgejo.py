"""Forgejo and Gitea (REST, v1)."""

from typing import Any, ClassVar

from api.git.provider import Found, GitProvider, Window, present, segments
from api.schemas.v1.git import Branch, Repository, SortOrder
from api.schemas.v1.suggested_tasks import SuggestedTask, TaskType

# It can't search branches: so many pages are looked through.
MAX_PAGES = 5
PAGE = 50


class Forgejo(GitProvider):
    """codeberg.org, or a server of one's own."""

    name: ClassVar[str] = "forgejo"
    default_host: ClassVar[str] = "codeberg.org"
    has_tasks: ClassVar[bool] = True

    @property
    def root(self) -> str:
        """The interface."""
        return f"{self.host}{self.folder}/api/v1"

    @property
    def authorization(self) -> str:
        """In its own words."""
        return f"token {self._token}"

    async def repositories(self, window: Window, installation: str | None) -> Found[Repository]:
        """All that the user can write to or has been given."""
        reply = await self.get("/user/repos", limit=window.size, page=window.number)
        return Found(self.read(reply.need(), self._repository), window.number + 1 if reply.more else None)

    async def search(self, window: Window, query: str, order: SortOrder) -> Found[Repository]:
        """Of everybody's that the token shows."""
        params = {"limit": window.size, "page": window.number, "sort": order.key, "order": order.direction}
        reply = await self.get("/repos/search", q=query, **params)
        items = self.read(self.read_object(reply).get("data"), self._repository)
        return Found(items, window.number + 1 if reply.more else None)

    async def branches(self, window: Window, repository: str, query: str) -> Found[Branch]:
        """A search looks through the first ones."""
        if query:
            return Found((await self._matching(repository, query))[: window.size])
        return await self._branches(repository, window)

    async def tasks(self) -> list[SuggestedTask]:
        """The issues that are the user's to solve."""
        reply = await self.get("/repos/issues/search", type="issues", state="open", assigned="true", limit=PAGE)
        return present(self.read(reply.need(), self._task))

    async def _branches(self, repository: str, window: Window) -> Found[Branch]:
        reply = await self.get(f"/repos/{segments(repository)}/branches", limit=window.size, page=window.number)
        return Found(self.read(reply.need(), _branch), window.number + 1 if reply.more else None)

    async def _matching(self, repository: str, query: str) -> list[Branch]:
        matching: list[Branch] = []
        window = Window(PAGE)
        for _ in range(MAX_PAGES):
            found = await self._branches(repository, window)
            matching += [branch for branch in found.items if query.lower() in branch.name.lower()]
            if found.following is None:
                break
            window = Window(PAGE, found.following)
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
