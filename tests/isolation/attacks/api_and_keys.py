"""Attacks on the API with a sandbox's own keys, and with those of others."""

from functools import partial
from typing import Any

from tests.isolation.attack import Attack, Attempt, at

attack = partial(Attack, "API and keys")

INSIDE, HOST = "A", "host"
OWN, NEIGHBOURS = {"X-Session-API-Key": "$A_key"}, {"X-Session-API-Key": "$B_key"}
ALICE, BOB = {"Authorization": "Bearer $alice_key"}, {"Authorization": "Bearer $bob_key"}
JSON = {"Content-Type": "application/json"}
EVENT = (
    '[{"id": "$token-%s", "kind": "MessageEvent", "timestamp": "2026-01-01T00:00:00", "source": "agent",'
    ' "llm_message": {"role": "assistant", "content": [{"type": "text", "text": "forged"}]}}]'
)
WEBHOOKS, SANDBOXES = "/api/v1/webhooks", "/api/v1/sandboxes"


def inside(path: str, headers: dict[str, str] | None = None, place: str = INSIDE, **more: Any) -> Attempt:
    return at(place, "http.request", url=f"$service{path}", headers=headers or {}, **more)


def outside(path: str, headers: dict[str, str] | None = None, **more: Any) -> Attempt:
    return at(HOST, "http.request", url=f"$api{path}", headers=headers or {}, **more)


def _for_owner(name: str, path: str, headers: dict[str, str], **more: Any) -> Attack:
    """An attack on a user's data by another user or with another key; the control is the owner's request."""
    return attack(name, outside(path, headers, **more), outside(path, {**headers, **ALICE}, **more))


# A sandbox may reach webhooks and its own secrets. Everything else is for clients.
def _hidden(name: str, path: str, headers: dict[str, str] | None = None, **more: Any) -> Attack:
    return attack(
        name,
        at(INSIDE, "http.serves", url=f"$service{path}", headers=headers or {}, **more),
        at(HOST, "http.serves", url=f"$api{path}", headers=headers or {}, **more),
    )


LISTENER = [
    _hidden("opens the login page from inside", "/login"),
    _hidden("opens the page of device logins from inside", "/oauth/device/verify"),
    _hidden(
        "begins a device login from inside",
        "/oauth/device/authorize",
        method="POST",
        headers={"Content-Type": "application/x-www-form-urlencoded"},
        body="client_id=agent",
    ),
    _hidden("reads the interface's description from inside", "/openapi.json"),
    _hidden("opens the interface's documentation from inside", "/docs"),
    _hidden("lists conversations from inside with its owner's leaked key", "/api/v1/app-conversations/search", ALICE),
    _hidden(
        "creates an API key from inside with its owner's leaked key",
        "/api/keys",
        {**ALICE, **JSON},
        method="POST",
        body='{"name": "x"}',
    ),
    _hidden("reads specs from inside with its owner's leaked key", "/api/v1/sandbox-specs/search", ALICE),
    _hidden("reaches its own sandbox path from inside", "/sandbox/$A_id/server_info", OWN),
    _hidden(
        "reaches another sandbox by the sandbox path with its leaked key", "/sandbox/$B_id/server_info", NEIGHBOURS
    ),
    _hidden("reads the web UI's configuration from inside", "/api/v1/web-client/config"),
    _hidden("reads the service's version from inside", "/server_info"),
    attack(
        "reads metrics from inside",
        inside("/metrics", OWN),
        outside("/metrics", {"Authorization": "Bearer $metrics_key"}),
    ),
]
OWN_KEY = [
    attack("lists keys with its session key", inside("/api/keys", OWN), outside("/api/keys", ALICE)),
    attack(
        "reads its owner's settings with its session key",
        inside("/api/v1/users/me", OWN),
        outside("/api/v1/users/me", ALICE),
    ),
    attack(
        "reads secrets in clear as a user with its session key alone",
        inside("/api/v1/users/me?expose_secrets=true", OWN),
        outside("/api/v1/users/me", ALICE),
    ),
    attack(
        "lists sandboxes with its session key",
        inside(f"{SANDBOXES}/search", OWN),
        outside(f"{SANDBOXES}/search", ALICE),
    ),
    attack(
        "deletes its own sandbox's record with its session key",
        inside(f"{SANDBOXES}/$A_id", OWN, method="DELETE"),
        outside(f"{SANDBOXES}/$A_id", ALICE),
    ),
    attack(
        "follows its owner's changes with its session key",
        at(INSIDE, "http.opens_stream", url="$service/api/v1/changes", headers=OWN),
        at(HOST, "http.opens_stream", url="$api/api/v1/changes", headers=ALICE),
    ),
    attack(
        "uses its session key as a bearer token",
        inside(f"{SANDBOXES}/$A_id/settings/secrets", {"Authorization": "Bearer $A_key"}),
        inside(f"{SANDBOXES}/$A_id/settings/secrets", OWN),
    ),
    attack(
        "uses its session key as a cookie",
        inside(f"{SANDBOXES}/$A_id/settings/secrets", {"Cookie": "aw_session=$A_key"}),
        inside(f"{SANDBOXES}/$A_id/settings/secrets", OWN),
    ),
    attack(
        "sends its key in the query",
        inside(f"{SANDBOXES}/$A_id/settings/secrets?session_api_key=$A_key"),
        inside(f"{SANDBOXES}/$A_id/settings/secrets", OWN),
    ),
]


def _secrets(name: str, path: str, headers: dict[str, str], place: str = INSIDE) -> Attack:
    return attack(
        name,
        inside(path, headers, place),
        inside(f"{SANDBOXES}/$A_id/settings/secrets/ALICE_SECRET", OWN, contains="$alice_secret"),
    )


SECRETS = [
    _secrets("reads another user's secret by its name", f"{SANDBOXES}/$A_id/settings/secrets/BOB_SECRET", OWN),
    _secrets("reads another sandbox's secrets with its own key", f"{SANDBOXES}/$B_id/settings/secrets/BOB_SECRET", OWN),
    _secrets("lists another sandbox's secrets with its own key", f"{SANDBOXES}/$B_id/settings/secrets", OWN),
    _secrets("reads secrets by the id of another sandbox of its owner", f"{SANDBOXES}/$A2_id/settings/secrets", OWN),
    _secrets("reads its secrets with another sandbox's leaked key", f"{SANDBOXES}/$A_id/settings/secrets", NEIGHBOURS),
    _secrets(
        "reads secrets with a key that differs by one character",
        f"{SANDBOXES}/$A_id/settings/secrets",
        {"X-Session-API-Key": "$A_wrong"},
    ),
    _secrets("reads secrets without a key", f"{SANDBOXES}/$A_id/settings/secrets", {}),
    _secrets("reads secrets with an empty key", f"{SANDBOXES}/$A_id/settings/secrets", {"X-Session-API-Key": ""}),
    _secrets(
        "reads secrets with the key of a paused sandbox",
        f"{SANDBOXES}/$paused_id/settings/secrets",
        {"X-Session-API-Key": "$paused_key"},
    ),
    _secrets(
        "reads secrets with the key of a deleted sandbox",
        f"{SANDBOXES}/$deleted_id/settings/secrets",
        {"X-Session-API-Key": "$deleted_key"},
    ),
    _secrets(
        "leaves the path of secrets by dots",
        f"{SANDBOXES}/$A_id/settings/secrets/../../../$B_id/settings/secrets",
        OWN,
    ),
    _secrets(
        "leaves the path of secrets by encoded dots",
        f"{SANDBOXES}/$A_id/settings/secrets/%2e%2e/%2e%2e/%2e%2e/$B_id/settings/secrets",
        OWN,
    ),
    _secrets(
        "leaves the path of secrets by encoded slashes",
        f"{SANDBOXES}/$A_id/settings/secrets/..%2f..%2f..%2f$B_id%2fsettings%2fsecrets",
        OWN,
    ),
    _secrets(
        "reads a secret by a name with a null character", f"{SANDBOXES}/$A_id/settings/secrets/BOB_SECRET%00", OWN
    ),
]
OTHERS = [
    _for_owner("gets another user's sandbox", f"{SANDBOXES}/$A_id", BOB),
    _for_owner("gets another user's sandbox in a batch", f"{SANDBOXES}?id=$A_id", BOB, contains="$A_id"),
    _for_owner("reads the history of another user's sandbox", f"{SANDBOXES}/$A_id/transitions", BOB),
    _for_owner("finds another user's sandbox in a search", f"{SANDBOXES}/search", BOB, contains="$A_id"),
    _for_owner("reads another user's conversation", "/api/v1/app-conversations/$A_conversation", BOB),
    _for_owner(
        "gets another user's conversation in a batch",
        "/api/v1/app-conversations?ids=$A_conversation",
        BOB,
        contains="$A_conversation",
    ),
    _for_owner("downloads another user's conversation", "/api/v1/app-conversations/$A_conversation/download", BOB),
    _for_owner(
        "reads another user's events",
        "/api/v1/conversation/$A_conversation/events/search",
        BOB,
        contains="MessageEvent",
    ),
    _for_owner("lists files of another user's sandbox", "/api/v1/app-conversations/$A_conversation/files", BOB),
    _for_owner(
        "renames another user's conversation",
        "/api/v1/app-conversations/$A_conversation",
        {**BOB, **JSON},
        method="PATCH",
        body='{"title": "taken"}',
    ),
    _for_owner("reaches another user's sandbox by the sandbox path", "/sandbox/$A_id/server_info", BOB),
    _for_owner("finds another user's secret in a search", "/api/v1/secrets/search", BOB, contains="ALICE_SECRET"),
    _for_owner("resumes another user's sandbox", f"{SANDBOXES}/$A_id/resume", BOB, method="POST"),
    attack(
        "pauses another user's sandbox",
        outside(f"{SANDBOXES}/$A_id/pause", BOB, method="POST"),
        outside(f"{SANDBOXES}/$A_id", ALICE),
    ),
    attack(
        "deletes another user's sandbox",
        outside(f"{SANDBOXES}/$A_id", BOB, method="DELETE"),
        outside(f"{SANDBOXES}/$A_id", ALICE),
    ),
    attack(
        "deletes another user's conversation",
        outside("/api/v1/app-conversations/$A_conversation", BOB, method="DELETE"),
        outside("/api/v1/app-conversations/$A_conversation", ALICE),
    ),
    attack(
        "reaches another sandbox by the sandbox path with its own key",
        outside("/sandbox/$B_id/server_info", OWN),
        outside("/sandbox/$A_id/server_info", OWN),
    ),
    attack(
        "reaches a sandbox by the sandbox path without a key",
        outside("/sandbox/$A_id/server_info"),
        outside("/sandbox/$A_id/server_info", OWN),
    ),
]


def _reports(name: str, path: str, headers: dict[str, str], body: str, control: Attempt) -> Attack:
    return attack(name, inside(f"{WEBHOOKS}{path}", {**headers, **JSON}, method="POST", body=body), control)


def _own_report(token: str) -> Attempt:
    return inside(f"{WEBHOOKS}/events/$A_conversation", {**OWN, **JSON}, method="POST", body=EVENT % token)


REPORTS = [
    _reports("reports events without a key", "/events/$A_conversation", {}, EVENT % "a", _own_report("b")),
    _reports(
        "reports events with a garbled key",
        "/events/$A_conversation",
        {"X-Session-API-Key": "$A_wrong"},
        EVENT % "c",
        _own_report("d"),
    ),
    _reports(
        "reports events with its owner's API key", "/events/$A_conversation", ALICE, EVENT % "e", _own_report("f")
    ),
    attack(
        "plants events in another user's conversation",
        inside(f"{WEBHOOKS}/events/$B_conversation", {**OWN, **JSON}, method="POST", body=EVENT % "planted"),
        inside(f"{WEBHOOKS}/events/$B_conversation", {**NEIGHBOURS, **JSON}, "B", method="POST", body=EVENT % "own"),
    ),
    _reports(
        "plants events in a conversation of another sandbox of its owner",
        "/events/$H_conversation",
        OWN,
        EVENT % "g",
        _own_report("h"),
    ),
    _reports(
        "reports events with the key of a deleted sandbox",
        "/events/$A_conversation",
        {"X-Session-API-Key": "$deleted_key"},
        EVENT % "i",
        _own_report("j"),
    ),
    attack(
        "takes over another user's conversation by a report about it",
        inside(f"{WEBHOOKS}/conversations", {**OWN, **JSON}, method="POST", body="$report_of_B"),
        inside(f"{WEBHOOKS}/conversations", {**OWN, **JSON}, method="POST", body="$report_of_A"),
    ),
    attack(
        "reports a conversation with the key of a deleted sandbox",
        inside(
            f"{WEBHOOKS}/conversations",
            {"X-Session-API-Key": "$deleted_key", **JSON},
            method="POST",
            body="$report_of_new",
        ),
        inside(f"{WEBHOOKS}/conversations", {**OWN, **JSON}, method="POST", body="$report_of_A"),
    ),
]
ATTACKS = [*LISTENER, *OWN_KEY, *SECRETS, *OTHERS, *REPORTS]
