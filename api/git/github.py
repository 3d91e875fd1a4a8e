"""GitHub and GitHub Enterprise (REST and GraphQL)."""

from typing import Any, ClassVar

from api.errors.upstream import UpstreamNotFound, UpstreamUnreachable
from api.git.provider import Found, GitProvider, Window, drop_none, segments
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
# The one installation of a token that belongs to a user, and not to an app: all that the token can read.
PERSONAL = "personal"
# A search names as many of a user's organizations.
MAX_ORGANIZATIONS = 100
# The types of a GraphQL error, earlier and now; as many errors are examined.
RATE_LIMIT_ERRORS = ("RATE_LIMITED", "RATE_LIMIT")
MAX_ERRORS = 10
FAILED_CHECKS = ("FAILURE", "ERROR")
INCOMPLETE = "the response of github is incomplete"


class GitHub(GitProvider):
    """A client of github.com, or of a self-hosted server."""

    name: ClassVar[str] = "github"
    has_tasks: ClassVar[bool] = True

    @property
    def root(self) -> str:
        """The URL of the REST API."""
        return self._hosted or f"{self.host}{self.folder}/api/v3"

    @property
    def _graphql(self) -> str:
        return f"{self._hosted or f'{self.host}{self.folder}/api'}/graphql"

    @property
    def _hosted(self) -> str | None:
        # GitHub's own servers, those of single enterprises included, have their APIs at a subdomain.
        scheme, _, host = self.host.partition("://")
        return f"{scheme}://api.{host}" if self.is_default or host.endswith(".ghe.com") else None

    async def installations(self, window: Window) -> Found[str]:
        """List the installations of the app that the token belongs to; `PERSONAL` for a user's personal token."""
        reply = await self.get("/user/installations", per_page=window.size, page=window.number)
        if reply.is_forbidden:
            return Found([PERSONAL])
        items = _find(reply.require_document(), "installations")
        return self.read_page(reply, window, items, lambda item: str(item["id"]))

    async def repositories(self, window: Window, installation: str | None) -> Found[Repository]:
        """List all repositories that the token can read, or those of one installation."""
        page = {"per_page": window.size, "page": window.number}
        if installation in (None, PERSONAL):
            reply = await self.get("/user/repos", sort="pushed", **page)
            items = reply.require_document()
        else:
            reply = await self.get(f"/user/installations/{segments(installation)}/repositories", **page)
            items = _find(reply.require_document(), "repositories")
        return self.read_page(reply, window, items, self._repository)

    async def search(self, window: Window, query: str, order: SortOrder) -> Found[Repository]:
        """Search the user's repositories and those of their organizations by name; `owner/name`: one owner's."""
        owner, slash, name = query.rpartition("/")
        owners = f"user:{owner}" if slash else await self._own()
        words = f"{name} in:name fork:true {owners}"
        params = {"per_page": window.size, "page": window.number, "sort": order.key, "order": order.direction}
        reply = await self.get("/search/repositories", q=words, **params)
        return self.read_page(reply, window, _find(reply.require_document(), "items"), self._repository)

    async def _own(self) -> str:
        """The qualifiers of the user and of the user's organizations, as far as the token may list these."""
        reply = await self.get("/user/orgs", per_page=MAX_ORGANIZATIONS)
        listed = [] if reply.is_forbidden else reply.require_document()
        return " ".join(["user:@me", *(f"org:{login}" for login in self.read(listed, lambda item: str(item["login"])))])

    async def branches(self, window: Window, repository: str, query: str) -> Found[Branch]:
        """List branches. A search uses GraphQL: REST matches only beginnings of names."""
        if query:
            return await self._search_branches(window, repository, query)
        path = f"/repos/{segments(repository)}/branches"
        reply = await self.get(path, per_page=window.size, page=window.number)
        return self.read_page(reply, window, reply.require_document(), _branch)

    async def tasks(self) -> list[SuggestedTask]:
        """List the user's open pull requests that need work, and the open issues that are assigned to the user."""
        data = await self._query(TASKS, {})
        requests, issues = _nodes(data, "viewer", "pullRequests"), _nodes(data, "search")
        if requests is None and issues is None:
            raise UpstreamUnreachable(INCOMPLETE)
        found = self.read(requests or [], self._request_task)
        found += self.read(issues or [], lambda node: self._task(TaskType.OPEN_ISSUE, node))
        return drop_none(found)

    async def _search_branches(self, window: Window, repository: str, query: str) -> Found[Branch]:
        owner, _, name = repository.partition("/")
        variables = {"owner": owner, "name": name, "query": query, "first": window.size, "after": window.cursor}
        data = await self._query(BRANCHES, variables)
        if data.get("repository") is None:
            raise UpstreamNotFound(self.name)
        refs = _find(data, "repository", "refs")
        items = self.read(_find(refs, "nodes"), _reference)
        has_next = _find(refs, "pageInfo", "hasNextPage")
        return Found(items, _find(refs, "pageInfo", "endCursor") if has_next else None)

    async def _query(self, text: str, variables: dict[str, Any]) -> Any:
        reply = await self._request("POST", self._graphql, json={"query": text, "variables": variables})
        document = reply.require_document()
        if _is_rate_limited(document):
            raise reply.rate_limited()
        data = _find(document, "data")
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
        if node.get("mergeable") == "CONFLICTING":
            return self._task(TaskType.MERGE_CONFLICTS, node)
        checks = [_get(each, "commit", "statusCheckRollup", "state") for each in _nodes(node, "commits") or ()]
        if any(state in FAILED_CHECKS for state in checks):
            return self._task(TaskType.FAILING_CHECKS, node)
        return self._task(TaskType.UNRESOLVED_COMMENTS, node) if _nodes(node, "reviews") else None

    def _task(self, kind: TaskType, node: Any) -> SuggestedTask | None:
        return self.task(kind, _get(node, "repository", "nameWithOwner"), node.get("number"), node.get("title"))


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


def _is_rate_limited(document: Any) -> bool:
    """Whether a response of GraphQL, a success without data, says that the rate limit is reached."""
    errors = document.get("errors") if isinstance(document, dict) and document.get("data") is None else None
    listed = errors[:MAX_ERRORS] if isinstance(errors, list) else []
    return any(isinstance(error, dict) and error.get("type") in RATE_LIMIT_ERRORS for error in listed)


def _find(document: Any, *names: str) -> Any:
    """Return the value under a path of names, which must not be null."""
    if (found := _get(document, *names)) is None:
        raise UpstreamUnreachable(INCOMPLETE)
    return found


def _get(document: Any, *names: str) -> Any:
    """Return the value under a path of names; None if there is none.

    GraphQL has null in the place of what the token may not read or what could not be read, at any depth.
    """
    for name in names:
        document = document.get(name) if isinstance(document, dict) else None
    return document


def _nodes(document: Any, *names: str) -> list[Any] | None:
    """Return the nodes under a path of names, without nulls; None if there is no list."""
    nodes = _get(document, *names, "nodes")
    return [node for node in nodes if node is not None] if isinstance(nodes, list) else None
