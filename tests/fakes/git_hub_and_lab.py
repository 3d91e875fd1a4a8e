"""Responses of GitHub and GitLab."""

from tests.fakes.git_requests import BRANCHES, NAMES, GitRequest, Reply, linked

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


def graphql(request: GitRequest) -> Reply:
    known = request.body["variables"]
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


def search_github(request: GitRequest) -> Reply:
    words, _, qualifiers = request.query["q"].rpartition(" in:name fork:true ")
    owners = {qualifier.partition(":")[2] for qualifier in qualifiers.split()}
    assert owners, "a search without an owner finds repositories of strangers"
    mine = [item for item in GITHUB if str(item["full_name"]).partition("/")[0] in owners]
    found = [item for item in mine if all(word in str(item["full_name"]) for word in words.split())]
    return linked(request, found, "per_page", "items")


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


def merge_requests(_asked: GitRequest) -> Reply:
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


def issues(_asked: GitRequest) -> Reply:
    return 200, {}, [{"iid": 5, "title": "i", "references": {"full": "acme/group/app#5"}}]
