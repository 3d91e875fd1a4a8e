"""HTTP interfaces of six git providers behind one real socket, with their paths, paging and authentication.

All providers have the same projects, and the same branches in `acme/app`.
"""

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qs, unquote

from tests.fakes.git_hub_and_lab import (
    GITHUB,
    GITHUB_BRANCHES,
    GITLAB,
    GITLAB_BRANCHES,
    graphql,
    issues,
    merge_requests,
    search_github,
)
from tests.fakes.git_requests import (
    BRANCHES,
    NAMES,
    PERSONAL_TOKEN,
    PLACES,
    TOKEN,
    GitRequest,
    Reply,
    counted,
    linked,
    matching,
    named,
)


@dataclass
class FakeGitHost:
    """The application."""

    got: list[GitRequest] = field(default_factory=list)
    # Response to every request, instead of the provider's.
    instead: Reply | None = None
    delay_seconds: float = 0.0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        request = await _read(scope, receive)
        self.got.append(request)
        await asyncio.sleep(self.delay_seconds)
        status, headers, content = self.instead or self.respond(request)
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": body})

    def respond(self, request: GitRequest) -> Reply:
        """Return the response of the provider with this path."""
        if request.authorization == f"Bearer {PERSONAL_TOKEN}" and request.path.startswith(V3):
            if request.path.startswith(f"{V3}/user/installations"):
                return 403, {"X-RateLimit-Remaining": "4999"}, {"message": NO_APP}
            request = replace(request, authorization=BEARER)
        for pattern, login, respond in ROUTES:
            if found := re.fullmatch(pattern, request.path):
                if request.authorization != login:
                    return 401, {}, {"message": f"Bad credentials {request.authorization}"}
                return respond(request, *found.groups())
        return 404, {}, {"message": "Not Found"}


async def _read(scope: Any, receive: Any) -> GitRequest:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    query = {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}
    login, cookie = (dict(scope["headers"]).get(name, b"").decode() for name in (b"authorization", b"cookie"))
    document = json.loads(body) if body else None
    return GitRequest(scope["method"], scope["raw_path"].decode(), query, login, document, cookie)


NO_APP = "You must authenticate with an access token authorized to a GitHub App in order to list installations"


CLOUD_BRANCHES = [{"name": name, "target": {"hash": f"sha-{name}", "date": "2026"}} for name in BRANCHES]


CENTER_PROJECT = {"key": "acme", "name": "The shop", "type": "NORMAL"}


CENTER = [
    {"id": number, "slug": name, "public": number % 2 == 1, "project": CENTER_PROJECT}
    for number, name in enumerate(NAMES)
]


CENTER_BRANCHES = [{"displayId": name, "latestCommit": f"sha-{name}"} for name in BRANCHES]


FORGEJO = [
    {
        "id": number,
        "full_name": f"acme/{name}",
        "private": number % 2 == 0,
        "stars_count": number,
        "updated_at": "2026-01-01T00:00:00Z",
        "default_branch": "main",
    }
    for number, name in enumerate(NAMES)
]


AZURE = [
    {
        "id": f"id-{number}",
        "name": name,
        "defaultBranch": "refs/heads/main",
        "project": {"name": "shop", "visibility": "public" if number % 2 else "private"},
    }
    for number, name in enumerate(NAMES)
]


def _cloud(request: GitRequest, workspace: str) -> Reply:
    """Return a workspace's repositories: five of the first workspace, none of the second, two of the third."""
    names = {"acme": NAMES[:5], "gamma": NAMES[5:]}.get(workspace, [])
    found = re.fullmatch(r'name ~ "(.*)"', request.query.get("q", 'name ~ ""'), re.DOTALL)
    assert found
    repositories = [
        {
            "uuid": f"{{{name}}}",
            "full_name": f"{workspace}/{name}",
            "is_private": number % 2 == 0,
            "updated_on": "2026-01-01T00:00:00Z",
            "mainbranch": {"name": "main"},
        }
        for number, name in enumerate(names)
        if found[1] in name
    ]
    return named(request, repositories)


def _cloud_branches(request: GitRequest) -> Reply:
    found = re.fullmatch(r'name ~ "(.*)"', request.query.get("q", 'name ~ ""'), re.DOTALL)
    assert found
    return named(request, [item for item in CLOUD_BRANCHES if found[1] in str(item["name"])])


def _center(request: GitRequest) -> Reply:
    """Return repositories by name; `projectname` is a name and not a key."""
    of_project = all(
        request.query.get(name, known) == known
        for name, known in (("projectname", CENTER_PROJECT["name"]), ("projectkey", CENTER_PROJECT["key"]))
    )
    return counted(request, matching(request, CENTER, "name", "slug") if of_project else [])


def _heads(request: GitRequest) -> Reply:
    first, size = int(request.query.get("continuationToken", "0")), int(request.query["$top"])
    text = request.query.get("filterContains", "")
    names = [name for name in BRANCHES if text in name]
    last = first + size
    headers = {"X-MS-ContinuationToken": str(last)} if last < len(names) else {}
    value = [{"name": f"refs/heads/{name}", "objectId": f"sha-{name}"} for name in names[first:last]]
    return 200, headers, {"value": value}


def _projects(request: GitRequest) -> Reply:
    first = int(request.query["$skip"])
    return 200, {}, {"value": [{"name": name} for name in PLACES[first : first + int(request.query["$top"])]]}


BEARER = f"Bearer {TOKEN}"


CLOUD = f"Basic {b64encode(f'anna:{TOKEN}'.encode()).decode()}"


PERSONAL = f"Basic {b64encode(f':{TOKEN}'.encode()).decode()}"


V3, V4, FORGE, CENTER_ROOT = "/api/v3", "/api/v4", "/api/v1", "/rest/api/1.0"


ROUTES: list[tuple[str, str, Callable[..., Reply]]] = [
    (f"{V3}/user/repos", BEARER, lambda request: linked(request, GITHUB, "per_page")),
    (
        f"{V3}/user/installations",
        BEARER,
        lambda request: linked(request, [{"id": number} for number in range(3)], "per_page", "installations"),
    ),
    (
        f"{V3}/user/installations/1/repositories",
        BEARER,
        lambda request: linked(request, GITHUB[:3], "per_page", "repositories"),
    ),
    (f"{V3}/search/repositories", BEARER, search_github),
    (
        f"{V3}/user/orgs",
        BEARER,
        lambda request: linked(request, [{"login": "acme"}, {"login": "umbrella"}], "per_page"),
    ),
    (f"{V3}/repos/acme/app/branches", BEARER, lambda request: linked(request, GITHUB_BRANCHES, "per_page")),
    ("/api/graphql", BEARER, graphql),
    (
        f"{V4}/projects",
        BEARER,
        lambda request: linked(request, matching(request, GITLAB, "search", "path_with_namespace"), "per_page"),
    ),
    (
        f"{V4}/projects/acme%2Fapp/repository/branches",
        BEARER,
        lambda request: linked(request, matching(request, GITLAB_BRANCHES, "search", "name"), "per_page"),
    ),
    (f"{V4}/merge_requests", BEARER, merge_requests),
    (f"{V4}/issues", BEARER, issues),
    (
        "/2.0/user/workspaces",
        CLOUD,
        lambda request: named(request, [{"workspace": {"slug": name}} for name in PLACES]),
    ),
    ("/2.0/repositories/acme/app/refs/branches", CLOUD, _cloud_branches),
    ("/2.0/repositories/([^/]+)", CLOUD, lambda request, workspace: _cloud(request, unquote(workspace))),
    (f"{CENTER_ROOT}/projects", BEARER, lambda request: counted(request, [{"key": name} for name in PLACES])),
    (f"{CENTER_ROOT}/repos", BEARER, _center),
    (f"{CENTER_ROOT}/projects/acme/repos", BEARER, lambda request: counted(request, CENTER[:3])),
    (
        f"{CENTER_ROOT}/projects/acme/repos/app/branches",
        BEARER,
        lambda request: counted(request, matching(request, CENTER_BRANCHES, "filterText", "displayId")),
    ),
    (f"{FORGE}/user/repos", f"token {TOKEN}", lambda request: linked(request, FORGEJO, "limit", max_size=3)),
    (
        f"{FORGE}/repos/search",
        f"token {TOKEN}",
        lambda request: linked(request, matching(request, FORGEJO, "q", "full_name"), "limit", "data", max_size=3),
    ),
    (
        f"{FORGE}/repos/acme/app/branches",
        f"token {TOKEN}",
        lambda request: linked(request, GITLAB_BRANCHES, "limit", max_size=3),
    ),
    (
        f"{FORGE}/repos/issues/search",
        f"token {TOKEN}",
        lambda _asked: (200, {}, [{"number": 5, "title": "i", "repository": {"full_name": "acme/app"}}]),
    ),
    ("/acme/_apis/projects", PERSONAL, _projects),
    ("/acme/_apis/git/repositories", PERSONAL, lambda _asked: (200, {}, {"value": AZURE})),
    ("/acme/beta/_apis/git/repositories", PERSONAL, lambda _asked: (200, {}, {"value": AZURE[:3]})),
    ("/acme/(?:acme/_apis/git/repositories/app|My%20Team/_apis/git/repositories/My%20app)/refs", PERSONAL, _heads),
]
