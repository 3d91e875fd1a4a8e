"""GitLab, hosted or self-hosted (REST, v4)."""

from typing import Any, ClassVar
from urllib.parse import quote

from api.git.provider import Found, GitProvider, Window, drop_none
from api.schemas.v1.git import Branch, Repository, SortOrder
from api.schemas.v1.suggested_tasks import SuggestedTask, TaskType

# The API has no order by forks.
ORDERS = {"stars": "star_count", "forks": "last_activity_at", "updated": "last_activity_at"}


class GitLab(GitProvider):
    """A client of gitlab.com, or of a self-hosted server."""

    name: ClassVar[str] = "gitlab"
    has_tasks: ClassVar[bool] = True

    @property
    def root(self) -> str:
        return f"{self.host}{self.folder}/api/v4"

    async def repositories(self, window: Window, installation: str | None) -> Found[Repository]:
        """List the projects that the user belongs to."""
        return await self._projects(window, order_by="last_activity_at", sort="desc")

    async def search(self, window: Window, query: str, order: SortOrder) -> Found[Repository]:
        """Search the projects that the user belongs to, by name, or by path if `query` has a slash."""
        by_path = "true" if "/" in query else None
        return await self._projects(
            window, search=query, search_namespaces=by_path, order_by=ORDERS[order.key], sort=order.direction
        )

    async def branches(self, window: Window, repository: str, query: str) -> Found[Branch]:
        path = f"/projects/{quote(repository, safe='')}/repository/branches"
        reply = await self.get(path, search=query or None, per_page=window.size, page=window.number)
        return self.read_page(reply, window, reply.require_document(), _branch)

    async def tasks(self) -> list[SuggestedTask]:
        """List the user's open merge requests that need work, and the open issues that are assigned to the user."""
        opened = {"state": "opened", "per_page": 50}
        requests = await self.get("/merge_requests", scope="created_by_me", **opened)
        issues = await self.get("/issues", scope="assigned_to_me", **opened)
        found = self.read(requests.require_document(), self._request_task)
        return drop_none(
            [*found, *self.read(issues.require_document(), lambda item: self._task(TaskType.OPEN_ISSUE, item))]
        )

    async def _projects(self, window: Window, **params: Any) -> Found[Repository]:
        page = {"per_page": window.size, "page": window.number}
        reply = await self.get("/projects", membership="true", **params, **page)
        return self.read_page(reply, window, reply.require_document(), self._repository)

    def _repository(self, item: Any) -> Repository:
        namespace = item.get("namespace") or {}
        return Repository(
            id=str(item["id"]),
            full_name=item["path_with_namespace"],
            git_provider=self.name,
            is_public=item.get("visibility") == "public",
            stargazers_count=item.get("star_count"),
            pushed_at=item.get("last_activity_at"),
            owner_type="organization" if namespace.get("kind") == "group" else "user",
            main_branch=item.get("default_branch"),
        )

    def _request_task(self, item: Any) -> SuggestedTask | None:
        if item.get("has_conflicts"):
            return self._task(TaskType.MERGE_CONFLICTS, item)
        if item.get("detailed_merge_status") == "ci_must_pass":
            return self._task(TaskType.FAILING_CHECKS, item)
        has_open_threads = item.get("blocking_discussions_resolved") is False
        return self._task(TaskType.UNRESOLVED_COMMENTS, item) if has_open_threads else None

    def _task(self, kind: TaskType, item: Any) -> SuggestedTask | None:
        # `group/project#7` or `group/project!7`
        repository = item["references"]["full"].replace("!", "#").rpartition("#")[0]
        return self.task(kind, repository, item["iid"], item["title"])


def _branch(item: Any) -> Branch:
    return Branch(
        name=item["name"],
        commit_sha=item["commit"]["id"],
        protected=bool(item.get("protected")),
        last_push_date=item["commit"].get("committed_date"),
    )
