"""Sections 1, 4, 5, 7 and 9: operations, keys, errors and versions."""

from typing import Any

from tests.contract.interface.promise import LIST, TEXT, Call, Promise
from tests.contract.interface.settings import SETTINGS, STORED, TOKENS, refused, store

CONVERSATIONS = "/api/v1/app-conversations"
SANDBOXES = "/api/v1/sandboxes"
SPECS = "/api/v1/sandbox-specs/search"
UNKNOWN = "0" * 32
ROUTES = "tests/api/routes/v1/"
AUTHENTICATION = "tests/api/request/test_authentication.py::test_"
BAD_INPUT = "tests/api/test_bad_input.py::test_"
FORM = "application/x-www-form-urlencoded"
NO_STORE = {"Cache-Control": "no-store"}
UNAUTHORIZED = {"WWW-Authenticate": "Bearer"}
MESSAGE = {"role": "user", "content": [{"type": "text", "text": "Write a greeting."}]}

# Every operation of section 4, with a body that is valid.
OPERATIONS: tuple[tuple[str, str, Any], ...] = (
    ("POST", CONVERSATIONS, {}),
    ("GET", CONVERSATIONS, None),
    ("GET", f"{SANDBOXES}/search", None),
    ("POST", SANDBOXES, None),
    ("POST", f"{SANDBOXES}/{UNKNOWN}/pause", None),
    ("POST", f"{SANDBOXES}/{UNKNOWN}/resume", None),
    ("GET", SPECS, None),
    ("POST", SETTINGS, {}),
    ("POST", TOKENS, {}),
)


def is_missing(method: str, path: str) -> Call:
    """A request for a resource that does not exist."""
    return Call(method, path, status=404, shows={"detail": TEXT})


def is_wrong(method: str, path: str, *location: str) -> Call:
    """A request with an invalid parameter."""
    return Call(method, path, status=422, shows={"detail.0.loc": list(location)})


def has_status(path: str, status: str) -> Call:
    """A request that is repeated until the first item of the response has this status."""
    return Call("GET", path, shows={"0.status": status}, repeats=True)


OF_SANDBOXES = (
    Promise(
        "4",
        "`GET /api/v1/sandbox-specs/search`: list/search sandbox specs",
        (
            Call("GET", SPECS, shows={"items": LIST, "items.0.id": TEXT, "next_page_id": None}, headers=NO_STORE),
            is_wrong("GET", f"{SPECS}?limit=0", "query", "limit"),
            Call("GET", f"{SPECS}?page_id=nonsense", status=400),
        ),
        f"{ROUTES}test_sandboxes.py::TestLists::test_specs_are_listed",
    ),
    Promise(
        "4",
        "`POST /api/v1/sandboxes`: start a sandbox",
        (
            Call("POST", SANDBOXES, shows={"id": TEXT, "status": "STARTING"}, headers=NO_STORE, keeps="sandbox"),
            has_status(f"{SANDBOXES}?id={{sandbox}}", "RUNNING"),
            is_missing("POST", f"{SANDBOXES}?sandbox_spec_id=unknown"),
        ),
        f"{ROUTES}test_sandboxes.py::TestStart::test_start_takes_the_named_spec",
    ),
    Promise(
        "4",
        "`GET /api/v1/sandboxes/search`: list/search sandboxes",
        (
            Call(
                "GET",
                f"{SANDBOXES}/search",
                shows={"items.0.id": TEXT, "items.0.status": "RUNNING", "next_page_id": None},
                headers=NO_STORE,
            ),
            is_wrong("GET", f"{SANDBOXES}/search?limit=0", "query", "limit"),
            Call("GET", f"{SANDBOXES}/search?page_id=nonsense", status=400),
        ),
        f"{ROUTES}test_sandboxes.py::TestLists::test_sandboxes_are_paged_newest_first",
    ),
    Promise(
        "4",
        "`POST /api/v1/sandboxes/{sandbox_id}/pause`: pause a sandbox",
        (
            Call("POST", f"{SANDBOXES}/{{sandbox}}/pause", shows={"success": True}),
            has_status(f"{SANDBOXES}?id={{sandbox}}", "PAUSED"),
            is_missing("POST", f"{SANDBOXES}/{UNKNOWN}/pause"),
            Call("POST", f"{SANDBOXES}/nonsense/pause", status=400),
            is_wrong("POST", f"{SANDBOXES}/{{sandbox}}/pause?kind=other", "query", "kind"),
        ),
        f"{ROUTES}test_sandboxes.py::test_commands_set_desired_states",
    ),
    Promise(
        "4",
        "`POST /api/v1/sandboxes/{sandbox_id}/resume`: resume a sandbox",
        (
            Call("POST", f"{SANDBOXES}/{{sandbox}}/resume", shows={"success": True}),
            has_status(f"{SANDBOXES}?id={{sandbox}}", "RUNNING"),
            is_missing("POST", f"{SANDBOXES}/{UNKNOWN}/resume"),
            Call("POST", f"{SANDBOXES}/nonsense/resume", status=400),
        ),
        f"{ROUTES}test_sandboxes.py::test_command_on_an_unknown_sandbox_is_a_404",
    ),
)
OF_CONVERSATIONS = (
    Promise(
        "4",
        "`POST /api/v1/app-conversations`: create a conversation",
        (
            Call(
                "POST",
                CONVERSATIONS,
                {"initial_message": MESSAGE, "title": "A greeting"},
                shows={"id": TEXT, "status": "WORKING"},
                headers=NO_STORE,
                keeps="task",
            ),
            has_status(f"{CONVERSATIONS}/start-tasks?ids={{task}}", "READY"),
            refused({"initial_message": 1}, "body", "initial_message", path=CONVERSATIONS),
            Call("POST", CONVERSATIONS, {"sandbox_id": UNKNOWN}, 404, {"detail": TEXT}),
        ),
        f"{ROUTES}conversation_starts/test_requests.py::TestStart::test_request_is_echoed_with_all_its_fields",
    ),
    Promise(
        "4",
        "`GET /api/v1/app-conversations`: list conversations; their metadata is accessible (section 1)",
        (
            Call(
                "GET",
                CONVERSATIONS,
                shows={
                    "items.0.id": TEXT,
                    "items.0.title": "A greeting",
                    "items.0.sandbox_status": "RUNNING",
                    "items.0.created_at": TEXT,
                    "next_page_id": None,
                },
                headers=NO_STORE,
            ),
            is_wrong("GET", f"{CONVERSATIONS}?limit=0", "query", "limit"),
            Call("GET", f"{CONVERSATIONS}?page_id=nonsense", status=400),
            Call("GET", f"{CONVERSATIONS}?ids=nonsense", status=400),
        ),
        f"{ROUTES}test_conversations.py::TestFields::test_conversation_in_a_running_sandbox_shows_all_fields",
    ),
)
OF_SETTINGS = (
    Promise(
        "4.1",
        "`POST /api/settings`: Content-Type and X-Session-API-Key; settings stored, a JSON object",
        (
            store({"language": "en"}, headers=NO_STORE),
            Call("POST", SETTINGS, b"language=en", 422, {"detail.0.loc": ["header", "Content-Type"]}, media_type=FORM),
            Call("POST", SETTINGS, b"{", 422, {"detail.0.loc": ["body", "1"]}),
            refused([], "body"),
        ),
        f"{ROUTES}settings/test_refusals.py::test_body_that_is_not_an_object_is_refused",
    ),
    Promise(
        "4.2",
        "`POST /api/add-git-providers`: Content-Type and X-Session-API-Key; failures as in section 2.4 (section 7)",
        (
            store({}, TOKENS, shows={"message": TEXT}, headers=NO_STORE),
            Call("POST", TOKENS, b"a=b", 422, {"detail.0.loc": ["header", "Content-Type"]}, media_type=FORM),
            Call("POST", TOKENS, b"\xff", 422, {"detail.0.loc": ["body"], "detail.0.msg": TEXT}),
            refused({"mcp_config": {"sse_servers": [1]}}, "body", "mcp_config", "sse_servers", "0", path=TOKENS),
        ),
        f"{BAD_INPUT}body_that_can_not_be_read_is_a_422_with_entries",
    ),
)


def _unauthenticated(method: str, path: str, body: Any) -> Promise:
    calls = tuple(
        Call(method, path, body, 401, {"detail": TEXT}, key, headers=UNAUTHORIZED)
        for key in ("no key", "an unknown key")
    )
    return Promise(
        "5",
        f"`{method} {path}` without a valid key is rejected",
        calls,
        f"{AUTHENTICATION}every_operation_requires_a_users_key",
    )


OF_KEYS = (
    *(_unauthenticated(*operation) for operation in OPERATIONS),
    Promise(
        "5",
        "the key in X-Session-API-Key; V1's operations accept it, too, and V1's clients send Authorization",
        (
            Call("GET", f"{SANDBOXES}/search", shows={"items": LIST}),
            Call("GET", f"{SANDBOXES}/search", shows={"items": LIST}, key="Authorization"),
            store({}, shows=STORED, key="Authorization"),
        ),
        f"{AUTHENTICATION}key_is_accepted_in_either_header",
    ),
)
OF_VERSIONS = (
    Promise(
        "9",
        "the current interface is V1, under /api/v1; legacy (V0) endpoints exist beside it",
        (
            Call("GET", f"{CONVERSATIONS}/search", shows={"items": LIST}),
            Call("GET", "/api/conversations", shows={"results": LIST}, headers={"Deprecation": TEXT}),
        ),
        "tests/api/routes/v0/test_deprecation.py::test_deprecated_operations_are_those_of_v0",
    ),
    Promise(
        "9",
        "the settings and provider-token endpoints are not under /api/v1",
        (
            store({}),
            store({}, TOKENS, shows={"message": TEXT}),
            is_missing("POST", "/api/v1/add-git-providers"),
        ),
        f"{BAD_INPUT}unknown_paths_and_methods_have_a_reason",
    ),
)
PROMISES = (*OF_SETTINGS, *OF_SANDBOXES, *OF_CONVERSATIONS, *OF_KEYS, *OF_VERSIONS)
