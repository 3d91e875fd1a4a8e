"""The HTTP of six git providers, behind one real socket: their paths, their ways of paging, their ways to log in.

Everybody has the same: some projects, and in `acme/app` some branches.
"""

import asyncio
import json
import re
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote

TOKEN = "token-in-clear"
NAMES = [f"app{number}" for number in range(7)]
BRANCHES = ["main", "feature/login", "feature/logout", "release-1", "release-2"]
PLACES = ["acme", "beta", "gamma"]

Answer = tuple[int, dict[str, str], Any]


@dataclass
class Asked:
    """A request that has come in."""

    method: str
    path: str
    query: dict[str, str]
    authorization: str
    body: Any


@dataclass
class FakeGitHost:
    """The application."""

    got: list[Asked] = field(default_factory=list)
    # What it answers instead, to everything.
    instead: Answer | None = None
    delay_seconds: float = 0.0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        asked = await _read(scope, receive)
        self.got.append(asked)
        await asyncio.sleep(self.delay_seconds)
        status, headers, content = self.instead or self.answer(asked)
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": body})

    def answer(self, asked: Asked) -> Answer:
        """What the provider of that path says."""
        for pattern, login, answer in ROUTES:
            if found := re.fullmatch(pattern, asked.path):
                if asked.authorization != login:
                    return 401, {}, {"message": f"Bad credentials {asked.authorization}"}
                return answer(asked, *found.groups())
        return 404, {}, {"message": "Not Found"}


async def _read(scope: Any, receive: Any) -> Asked:
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    query = {name: values[0] for name, values in parse_qs(scope["query_string"].decode()).items()}
    login = dict(scope["headers"]).get(b"authorization", b"").decode()
    return Asked(scope["method"], scope["raw_path"].decode(), query, login, json.loads(body) if body else None)


def _linked(asked: Asked, items: list[Any], size_name: str, wrap: str | None = None, most: int = 100) -> Answer:
    """A page by number, the next one named in a header."""
    number, size = int(asked.query.get("page", "1")), min(int(asked.query.get(size_name, "30")), most)
    part = items[(number - 1) * size : number * size]
    headers = {"Link": '<http://elsewhere/next>; rel="next"'} if number * size < len(items) else {}
    return 200, headers, part if wrap is None else {wrap: part, "total_count": len(items)}


def _named(asked: Asked, items: list[Any]) -> Answer:
    """A page by number, the next one named in the document."""
    number, size = int(asked.query.get("page", "1")), int(asked.query.get("pagelen", "10"))
    document = {"values": items[(number - 1) * size : number * size]}
    return 200, {}, document | ({"next": "http://elsewhere"} if number * size < len(items) else {})


def _counted(asked: Asked, items: list[Any]) -> Answer:
    """A page by the place where it begins."""
    first, size = int(asked.query.get("start", "0")), int(asked.query.get("limit", "25"))
    last = first + size
    more = {"isLastPage": last >= len(items), "nextPageStart": last if last < len(items) else None}
    return 200, {}, {"values": items[first:last]} | more


def _holding(asked: Asked, items: list[Any], name: str, key: str) -> list[Any]:
    text = asked.query.get(name, "")
    return [item for item in items if text in item[key]]


# --- GitHub -----------------------------------------------------------------------------------------------------------

GITHUB = [
    {
        "id": number,
        "full_name": f"acme/{name}",
        "private": number % 2 == 0,
        "stargazers_count": number,
        "pushed_at": "2026-01-01T00:00:00Z",
        "owner": {"type": "Organization"},
        "default_branch": "main",
    }
    for number, name in enumerate(NAMES)
]
GITHUB_BRANCHES = [{"name": name, "commit": {"sha": f"sha-{name}"}, "protected": name == "main"} for name in BRANCHES]
REQUEST = {
    "title": "t",
    "mergeable": "MERGEABLE",
    "repository": {"nameWithOwner": "acme/app"},
    "commits": {"nodes": [{"commit": {"statusCheckRollup": None}}]},
    "reviews": {"nodes": []},
}
FAILING = {"nodes": [{"commit": {"statusCheckRollup": {"state": "FAILURE"}}}]}


def _graphql(asked: Asked) -> Answer:
    known = asked.body["variables"]
    if not known:
        requests = [
            REQUEST | {"number": 1, "mergeable": "CONFLICTING"},
            REQUEST | {"number": 2, "commits": FAILING},
            REQUEST | {"number": 3, "reviews": {"nodes": [{"state": "COMMENTED"}]}},
            REQUEST | {"number": 4},
        ]
        issues = [{"number": 5, "title": "i", "repository": {"nameWithOwner": "acme/app"}}]
        return 200, {}, {"data": {"viewer": {"pullRequests": {"nodes": requests}}, "search": {"nodes": issues}}}
    if known["name"] != "app":
        return 200, {}, {"data": {"repository": None}, "errors": [{"type": "NOT_FOUND"}]}
    first = int(known["after"] or 0)
    names = [name for name in BRANCHES if known["query"] in name]
    last = first + known["first"]
    nodes = [
        {"name": name, "branchProtectionRule": None, "target": {"oid": f"sha-{name}", "committedDate": "2026"}}
        for name in names[first:last]
    ]
    info = {"hasNextPage": last < len(names), "endCursor": str(last)}
    return 200, {}, {"data": {"repository": {"refs": {"nodes": nodes, "pageInfo": info}}}}


def _search_github(asked: Asked) -> Answer:
    word, *rest = asked.query["q"].split()
    found = [item for item in GITHUB if word in str(item["full_name"])]
    assert rest[:2] == ["in:name", "fork:true"]
    return _linked(asked, found, "per_page", "items")


# --- GitLab -----------------------------------------------------------------------------------------------------------

GITLAB = [
    {
        "id": number,
        "path_with_namespace": f"acme/{name}",
        "visibility": "public" if number % 2 else "private",
        "star_count": number,
        "last_activity_at": "2026-01-01T00:00:00Z",
        "namespace": {"kind": "group"},
        "default_branch": "main",
    }
    for number, name in enumerate(NAMES)
]
GITLAB_BRANCHES = [
    {"name": name, "commit": {"id": f"sha-{name}", "committed_date": "2026"}, "protected": name == "main"}
    for name in BRANCHES
]


def _merge_requests(_asked: Asked) -> Answer:
    one = {"title": "t", "references": {"full": "acme/group/app!7"}}
    return (
        200,
        {},
        [
            one | {"iid": 1, "has_conflicts": True},
            one | {"iid": 2, "detailed_merge_status": "ci_must_pass"},
            one | {"iid": 3, "blocking_discussions_resolved": False},
            one | {"iid": 4, "blocking_discussions_resolved": True},
        ],
    )


def _issues(_asked: Asked) -> Answer:
    return 200, {}, [{"iid": 5, "title": "i", "references": {"full": "acme/group/app#5"}}]


# --- the others -------------------------------------------------------------------------------------------------------

CLOUD_BRANCHES = [{"name": name, "target": {"hash": f"sha-{name}", "date": "2026"}} for name in BRANCHES]
CENTER = [
    {"id": number, "slug": name, "public": number % 2 == 1, "project": {"key": "acme", "type": "NORMAL"}}
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


def _cloud(asked: Asked, workspace: str) -> Answer:
    """The first workspace has five repositories, the second none, the third two."""
    names = {"acme": NAMES[:5], "gamma": NAMES[5:]}.get(workspace, [])
    found = re.fullmatch(r'name ~ "(.*)"', asked.query.get("q", 'name ~ ""'))
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
    return _named(asked, repositories)


def _cloud_branches(asked: Asked) -> Answer:
    found = re.fullmatch(r'name ~ "(.*)"', asked.query.get("q", 'name ~ ""'))
    assert found
    return _named(asked, [item for item in CLOUD_BRANCHES if found[1] in str(item["name"])])


def _heads(asked: Asked) -> Answer:
    first, size = int(asked.query.get("continuationToken", "0")), int(asked.query["$top"])
    text = asked.query.get("filterContains", "")
    names = [name for name in BRANCHES if text in name]
    last = first + size
    headers = {"X-MS-ContinuationToken": str(last)} if last < len(names) else {}
    value = [{"name": f"refs/heads/{name}", "objectId": f"sha-{name}"} for name in names[first:last]]
    return 200, headers, {"value": value}


def _projects(asked: Asked) -> Answer:
    first = int(asked.query["$skip"])
    return 200, {}, {"value": [{"name": name} for name in PLACES[first : first + int(asked.query["$top"])]]}


BEARER = f"Bearer {TOKEN}"
CLOUD = f"Basic {b64encode(f'anna:{TOKEN}'.encode()).decode()}"
PERSONAL = f"Basic {b64encode(f':{TOKEN}'.encode()).decode()}"
V3, V4, FORGE, CENTER_ROOT = "/api/v3", "/api/v4", "/api/v1", "/rest/api/1.0"

ROUTES: list[tuple[str, str, Callable[..., Answer]]] = [
    (f"{V3}/user/repos", BEARER, lambda asked: _linked(asked, GITHUB, "per_page")),
    (
        f"{V3}/user/installations",
        BEARER,
        lambda asked: _linked(asked, [{"id": number} for number in range(3)], "per_page", "installations"),
    ),
    (
        f"{V3}/user/installations/1/repositories",
        BEARER,
        lambda asked: _linked(asked, GITHUB[:3], "per_page", "repositories"),
    ),
    (f"{V3}/search/repositories", BEARER, _search_github),
    (f"{V3}/repos/acme/app/branches", BEARER, lambda asked: _linked(asked, GITHUB_BRANCHES, "per_page")),
    ("/api/graphql", BEARER, _graphql),
    (
        f"{V4}/projects",
        BEARER,
        lambda asked: _linked(asked, _holding(asked, GITLAB, "search", "path_with_namespace"), "per_page"),
    ),
    (
        f"{V4}/projects/acme%2Fapp/repository/branches",
        BEARER,
        lambda asked: _linked(asked, _holding(asked, GITLAB_BRANCHES, "search", "name"), "per_page"),
    ),
    (f"{V4}/merge_requests", BEARER, _merge_requests),
    (f"{V4}/issues", BEARER, _issues),
    (
        "/2.0/user/workspaces",
        CLOUD,
        lambda asked: _named(asked, [{"workspace": {"slug": name}} for name in PLACES]),
    ),
    ("/2.0/repositories/acme/app/refs/branches", CLOUD, _cloud_branches),
    ("/2.0/repositories/([^/]+)", CLOUD, lambda asked, workspace: _cloud(asked, unquote(workspace))),
    (f"{CENTER_ROOT}/projects", BEARER, lambda asked: _counted(asked, [{"key": name} for name in PLACES])),
    (f"{CENTER_ROOT}/repos", BEARER, lambda asked: _counted(asked, _holding(asked, CENTER, "name", "slug"))),
    (f"{CENTER_ROOT}/projects/acme/repos", BEARER, lambda asked: _counted(asked, CENTER[:3])),
    (
        f"{CENTER_ROOT}/projects/acme/repos/app/branches",
        BEARER,
        lambda asked: _counted(asked, _holding(asked, CENTER_BRANCHES, "filterText", "displayId")),
    ),
    (f"{FORGE}/user/repos", f"token {TOKEN}", lambda asked: _linked(asked, FORGEJO, "limit", most=3)),
    (
        f"{FORGE}/repos/search",
        f"token {TOKEN}",
        lambda asked: _linked(asked, _holding(asked, FORGEJO, "q", "full_name"), "limit", "data", most=3),
    ),
    (
        f"{FORGE}/repos/acme/app/branches",
        f"token {TOKEN}",
        lambda asked: _linked(asked, GITLAB_BRANCHES, "limit", most=3),
    ),
    (
        f"{FORGE}/repos/issues/search",
        f"token {TOKEN}",
        lambda _asked: (200, {}, [{"number": 5, "title": "i", "repository": {"full_name": "acme/app"}}]),
    ),
    ("/acme/_apis/projects", PERSONAL, _projects),
    ("/acme/_apis/git/repositories", PERSONAL, lambda _asked: (200, {}, {"value": AZURE})),
    ("/acme/beta/_apis/git/repositories", PERSONAL, lambda _asked: (200, {}, {"value": AZURE[:3]})),
    ("/acme/acme/_apis/git/repositories/app/refs", PERSONAL, _heads),
]
