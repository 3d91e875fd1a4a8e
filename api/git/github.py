"""GitHub, and its enterprise edition (REST and GraphQL)."""

from typing import Any, ClassVar

from api.errors.upstream import NotThere, Unreached
from api.git.provider import Found, GitProvider, Window, present, segments
from api.schemas.v1.git import Branch, Repository, SortOrder
from api.schemas.v1.suggested_tasks import SuggestedTask, TaskType

BRANCHES = """
query($owner: String!, $name: String!, $query: String!, $first: Int!, $after: String) {
  repository(owner: $owner, name: $name) {
    refs(refPrefix: "refs/heads/", query: $query, first: $first, after: $after) {
      nodes { name branchProtectionRule { id } target { oid ... on Commit { committedDate } } }
      pageInfo { hasNextPage endCursor }
    }
  }
}"""
TASKS = """
query {
  viewer {
    pullRequests(first: 50, states: [OPEN], orderBy: {field: UPDATED_AT, direction: DESC}) {
      nodes {
        number title mergeable
        repository { nameWithOwner }
        commits(last: 1) { nodes { commit { statusCheckRollup { state } } } }
        reviews(last: 20, states: [CHANGES_REQUESTED, COMMENTED]) { nodes { state } }
      }
    }
  }
  search(query: "is:open is:issue archived:false assignee:@me", type: ISSUE, first: 50) {
    nodes { ... on Issue { number title repository { nameWithOwner } } }
  }
}"""


class GitHub(GitProvider):
    """github.com, or a server of one's own."""

    name: ClassVar[str] = "github"
    default_host: ClassVar[str] = "github.com"
    has_tasks: ClassVar[bool] = True

    @property
    def root(self) -> str:
        """The REST interface."""
        return self._hosted or f"{self.host}{self.folder}/api/v3"

    @property
    def _graphql(self) -> str:
        return f"{self._hosted or f'{self.host}{self.folder}/api'}/graphql"

    @property
    def _hosted(self) -> str | None:
        """GitHub's own servers have their interfaces beside them, also those for one enterprise alone."""
        scheme, _, host = self.host.partition("://")
        return f"{scheme}://api.{host}" if self.is_default or host.endswith(".ghe.com") else None

    async def installations(self, window: Window) -> Found[str]:
        """Of the app that the token is one of."""
        reply = await self.get("/user/installations", per_page=window.size, page=window.number)
        items = self.read(_member(reply.need(), "installations"), lambda item: str(item["id"]))
        return Found(items, window.number + 1 if reply.more else None)

    async def repositories(self, window: Window, installation: str | None) -> Found[Repository]:
        """All that the token shows."""
        page = {"per_page": window.size, "page": window.number}
        if installation is None:
            reply = await self.get("/user/repos", sort="pushed", **page)
            items = reply.need()
        else:
            reply = await self.get(f"/user/installations/{segments(installation)}/repositories", **page)
            items = _member(reply.need(), "repositories")
        return Found(self.read(items, self._repository), window.number + 1 if reply.more else None)

    async def search(self, window: Window, query: str, order: SortOrder) -> Found[Repository]:
        """Of everybody's; `owner/name` looks at one owner's."""
        owner, slash, name = query.rpartition("/")
        words = f"{name} in:name fork:true" + (f" user:{owner}" if slash else "")
        params = {"per_page": window.size, "page": window.number, "sort": order.key, "order": order.direction}
        reply = await self.get("/search/repositories", q=words, **params)
        items = self.read(_member(reply.need(), "items"), self._repository)
        return Found(items, window.number + 1 if reply.more else None)

    async def branches(self, window: Window, repository: str, query: str) -> Found[Branch]:
        """Names are searched by GraphQL: REST knows how they begin only."""
        if query:
            return await self._search_branches(window, repository, query)
        path = f"/repos/{segments(repository)}/branches"
        reply = await self.get(path, per_page=window.size, page=window.number)
        items = self.read(reply.need(), _branch)
        return Found(items, window.number + 1 if reply.more else None)

    async def tasks(self) -> list[SuggestedTask]:
        """The user's open pull requests that lack something, and the issues that are theirs to solve."""
        data = await self._query(TASKS, {})
        requests = self.read(_member(data, "viewer", "pullRequests", "nodes"), self._request_task)
        issues = self.read(_member(data, "search", "nodes"), lambda node: self._task(TaskType.OPEN_ISSUE, node))
        return present([*requests, *issues])

    async def _search_branches(self, window: Window, repository: str, query: str) -> Found[Branch]:
        owner, _, name = repository.partition("/")
        asked = {"owner": owner, "name": name, "query": query, "first": window.size, "after": window.text}
        data = await self._query(BRANCHES, asked)
        if data.get("repository") is None:
            raise NotThere(self.name)
        refs = _member(data, "repository", "refs")
        items = self.read(_member(refs, "nodes"), _reference)
        more = _member(refs, "pageInfo", "hasNextPage")
        return Found(items, _member(refs, "pageInfo", "endCursor") if more else None)

    async def _query(self, text: str, variables: dict[str, Any]) -> Any:
        reply = await self._ask("POST", self._graphql, json={"query": text, "variables": variables})
        data = _member(reply.need(), "data")
        return data if isinstance(data, dict) else {}

    def _repository(self, item: Any) -> Repository:
        return Repository(
            id=str(item["id"]),
            full_name=item["full_name"],
            git_provider=self.name,
            is_public=not item.get("private", True),
            stargazers_count=item.get("stargazers_count"),
            pushed_at=item.get("pushed_at"),
            owner_type="organization" if (item.get("owner") or {}).get("type") == "Organization" else "user",
            main_branch=item.get("default_branch"),
        )

    def _request_task(self, node: Any) -> SuggestedTask | None:
        checks = [commit["commit"].get("statusCheckRollup") or {} for commit in node["commits"]["nodes"]]
        if node["mergeable"] == "CONFLICTING":
            return self._task(TaskType.MERGE_CONFLICTS, node)
        if any(check.get("state") in ("FAILURE", "ERROR") for check in checks):
            return self._task(TaskType.FAILING_CHECKS, node)
        return self._task(TaskType.UNRESOLVED_COMMENTS, node) if node["reviews"]["nodes"] else None

    def _task(self, kind: TaskType, node: Any) -> SuggestedTask | None:
        return self.task(kind, node["repository"]["nameWithOwner"], node["number"], node["title"])


def _branch(item: Any) -> Branch:
    return Branch(name=item["name"], commit_sha=item["commit"]["sha"], protected=bool(item.get("protected")))


def _reference(node: Any) -> Branch:
    target = node["target"]
    return Branch(
        name=node["name"],
        commit_sha=target["oid"],
        protected=node.get("branchProtectionRule") is not None,
        last_push_date=target.get("committedDate"),
    )


def _member(document: Any, *names: str) -> Any:
    """What is under these names, one within the other.

    Raises:
        Unreached: nothing is.
    """
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
        if document is None:
            raise Unreached("the answer of github does not hold what was asked for")
    return document
