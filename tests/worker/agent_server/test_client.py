import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from shared.agent_server.errors import AgentServerRefused, AgentServerUnreachable, WrongServer
from shared.redaction import redacting
from tests.factories import DOOR
from worker.agent_server.client import AgentServer
from worker.agent_server.transport import open_client

KEY = "session-key-1"
ID = "0123456789abcdef0123456789abcdef"
DASHED = "01234567-89ab-cdef-0123-456789abcdef"
Handler = Callable[[httpx.Request], httpx.Response]


def server_that(handler: Handler, **options: Any) -> AgentServer:
    client = httpx.Client(transport=httpx.MockTransport(handler))
    return AgentServer("http://10.0.0.9:1234/", KEY, client, **options)


def answering(status: int, **content: Any) -> Handler:
    return lambda _request: httpx.Response(status, **content)


def failing(error: type[httpx.TransportError]) -> Handler:
    def fail(request: httpx.Request) -> httpx.Response:
        raise error(f"could not send {request.content!r}", request=request)

    return fail


def locked(request: httpx.Request) -> httpx.Response:
    right = request.headers.get("X-Session-API-Key") == KEY
    return httpx.Response(200, json=0) if right else httpx.Response(401, json={"detail": "Unauthorized"})


def test_server_that_accepts_only_its_key_is_ready() -> None:
    requested: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        requested.append(str(request.url))
        return locked(request)

    assert server_that(handler).is_ready() is True
    assert set(requested) == {"http://10.0.0.9:1234/api/conversations/count"}


@pytest.mark.parametrize("error", [httpx.ConnectError, httpx.ReadTimeout, httpx.ReadError, httpx.RemoteProtocolError])
def test_server_without_a_response_is_not_ready(error: type[httpx.TransportError]) -> None:
    assert server_that(failing(error)).is_ready() is False


@pytest.mark.parametrize("status", [429, 500, 503])
def test_server_with_a_temporary_error_is_not_ready(status: int) -> None:
    assert server_that(answering(status)).is_ready() is False


@pytest.mark.parametrize("status", [401, 403, 404, 302])
def test_wrong_server_at_the_address_is_reported(status: int) -> None:
    with pytest.raises(WrongServer) as failure:
        server_that(answering(status)).is_ready()
    assert failure.value.reason == "wrong_agent_server"


def test_server_that_needs_no_key_is_the_wrong_server() -> None:
    with pytest.raises(WrongServer, match="without a key"):
        server_that(answering(200, json=0)).is_ready()


def test_command_returns_its_result() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"exit_code": 3, "stdout": "out\n", "stderr": None, "order": 0})

    result = server_that(handler).run_command("false", cwd="/workspace", timeout=40)
    assert (result.exit_code, result.stdout, result.stderr, result.output) == (3, "out\n", "", "out\n")
    assert seen[0].url.path == "/api/bash/execute_bash_command"
    assert seen[0].headers["X-Session-API-Key"] == KEY
    assert json.loads(seen[0].content) == {"command": "false", "cwd": "/workspace", "timeout": 40}
    assert seen[0].extensions["timeout"]["read"] > 40


def test_upload_sends_the_content_and_the_path() -> None:
    seen: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        request.read()
        seen.append(request)
        return httpx.Response(200, json={"success": True, "file_size": 3})

    server_that(handler).upload("/dev/shm/a b/credential", b"\x00\xff!")
    assert seen[0].url.params["path"] == "/dev/shm/a b/credential"
    assert b"\x00\xff!" in seen[0].content


def test_folder_with_an_endless_path_means_wrong_server() -> None:
    """Paths of folders come from a sandbox, and a URL has a max length: no job may fail because of a longer path."""
    with pytest.raises(WrongServer, match="path is longer"):
        server_that(answering(200)).upload("/" * 100_000, b"")


@pytest.mark.parametrize("status", [200, 201])
def test_conversation_is_created_or_found(status: int) -> None:
    server = server_that(answering(status, json={"id": ID, "title": None}))
    assert server.create_conversation({"conversation_id": ID}) == {"id": ID, "title": None}


def test_error_text_contains_the_problem_without_the_secrets() -> None:
    detail = [
        {"loc": ["body", "secrets", "A"], "msg": "Input should be an object", "input": "quoted-secret"},
        {
            "loc": ["body"],
            "msg": "Value error, 1 validation error\nopenhands.llm.timeout\n  Input should be a number "
            "[type=int_parsing, input_value='llm-k...et, input_type=str]', input_type=str]\n"
            "    For further information visit https://errors.pydantic.dev/2.14/v/int_parsing",
        },
        {"loc": ["body", "tags"], "msg": "the key llm-key-secret is no tag"},
    ]
    server = server_that(answering(422, json={"detail": detail}), redact=redacting(["llm-key-secret"]))
    with pytest.raises(AgentServerRefused) as failure:
        server.create_conversation({})
    assert failure.value.status == 422
    assert failure.value.reason == "agent_server_refused"
    assert str(failure.value) == (
        "the agent server refused to start the conversation: 422 secrets.A: Input should be an object; "
        "Value error, 1 validation error openhands.llm.timeout Input should be a number; "
        "tags: the key ****** is no tag"
    )


def test_client_without_known_secrets_shows_none_of_an_errors_text() -> None:
    with pytest.raises(AgentServerRefused) as failure:
        server_that(answering(422, json={"detail": "a secret"})).create_conversation({})
    assert str(failure.value) == "the agent server refused to start the conversation: 422"


def test_secret_of_several_lines_is_hidden_in_quoted_form() -> None:
    secret = 'one "two"\n  three'
    detail = f"{secret}; {json.dumps(secret)}"
    server = server_that(answering(422, json={"detail": detail}), redact=redacting([secret]))
    with pytest.raises(AgentServerRefused) as failure:
        server.create_conversation({})
    assert str(failure.value).endswith(': 422 ******; "******"')


@pytest.mark.parametrize("status", [429, 500, 503])
def test_temporary_status_means_unreachable(status: int) -> None:
    problem = {"detail": "Internal Server Error", "exception": f"no {KEY}"}
    server = server_that(answering(status, json=problem), redact=redacting([]))
    with pytest.raises(AgentServerUnreachable) as failure:
        server.create_conversation({})
    assert f"{status} Internal Server Error; no ******" in str(failure.value)
    assert failure.value.reason == "agent_server_unreachable"


@pytest.mark.parametrize("error", [httpx.ConnectError, httpx.ReadTimeout, httpx.ReadError])
def test_missing_response_is_reported_without_the_sent_body(error: type[httpx.TransportError]) -> None:
    with pytest.raises(AgentServerUnreachable) as failure:
        server_that(failing(error)).create_conversation({"secret": "top-secret-value"})
    assert str(failure.value) == f"no response to the request to start the conversation: {error.__name__}"
    assert failure.value.__cause__ is None
    assert failure.value.__suppress_context__


@pytest.mark.parametrize(
    "content", [{"text": "<html>"}, {"json": ["a", "list"]}, {"json": {"detail": {"odd": 1}}}, {"text": ""}]
)
def test_error_of_an_unknown_form_is_reported_by_its_status(content: dict[str, Any]) -> None:
    with pytest.raises(AgentServerRefused) as failure:
        server_that(answering(400, **content)).create_conversation({})
    assert str(failure.value) == "the agent server refused to start the conversation: 400"


@pytest.mark.parametrize("content", [{"text": "<html>"}, {"json": ["a", "list"]}])
def test_response_of_another_kind_of_server_is_rejected(content: dict[str, Any]) -> None:
    with pytest.raises(WrongServer):
        server_that(answering(200, **content)).create_conversation({})


def test_rejected_key_means_wrong_server() -> None:
    with pytest.raises(WrongServer):
        server_that(answering(401, json={"detail": "Unauthorized"})).interrupt(ID)


@pytest.mark.parametrize(
    ("call", "method", "path"),
    [
        (lambda server: server.interrupt(ID), "POST", f"/api/conversations/{ID}/interrupt"),
        (lambda server: server.delete_conversation(ID), "DELETE", f"/api/conversations/{ID}"),
        (lambda server: server.rename_conversation(ID, "new"), "PATCH", f"/api/conversations/{ID}"),
    ],
)
def test_call_about_a_deleted_conversation_succeeds(
    call: Callable[[AgentServer], bool], method: str, path: str
) -> None:
    seen: list[tuple[str, str]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append((request.method, request.url.path))
        return httpx.Response(200, json={"success": True})

    assert call(server_that(handler)) is True
    assert seen == [(method, path)]
    assert call(server_that(answering(404, json={"detail": "Not Found"}))) is False


def test_conversation_can_be_read() -> None:
    assert server_that(answering(200, json={"title": "T"})).get_conversation(ID) == {"title": "T"}
    assert server_that(answering(404)).get_conversation(ID) is None


def test_running_conversations_are_listed() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        assert request.url.params["status"] == "running"
        found, following = pages[request.url.params.get("page_id")]
        return httpx.Response(200, json={"items": [{"id": found, "title": 1}], "next_page_id": following})

    pages = {None: (DASHED, ID), ID: (ID, None)}
    assert server_that(handler).find_running() == [DASHED, ID]


def test_newest_messages_of_users_are_listed() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        requested = dict(request.url.params)
        event, following = pages[requested.pop("page_id", None)]
        assert requested == {"kind": "MessageEvent", "source": "user", "sort_order": "TIMESTAMP_DESC", "limit": "1"}
        content = [{"type": "text", "text": event}]
        item = {"id": event, "kind": "MessageEvent", "llm_message": {"role": "user", "content": content}}
        return httpx.Response(200, json={"items": [item], "next_page_id": following})

    pages = {None: ("b", "a"), "a": ("a", None)}
    found = list(server_that(handler).list_messages(ID))
    assert [(said.id, said.llm_message.content[0]["text"]) for said in found] == [("b", "b"), ("a", "a")]


@pytest.mark.parametrize(
    ("response", "send"),
    [
        ({"exit_code": "0", "stdout": None, "stderr": None}, lambda server: server.run_command("true")),
        ({"exit_code": 0, "stdout": [], "stderr": None}, lambda server: server.run_command("true")),
        ({"title": 1}, lambda server: server.get_conversation(ID)),
        ({"last_user_message_id": {}}, lambda server: server.get_conversation(ID)),
        ({"items": [{"id": 1}]}, lambda server: list(server.list_messages(ID))),
        ({"items": [{"id": "e", "llm_message": None}]}, lambda server: list(server.list_messages(ID))),
        ({"items": [{"id": "e", "llm_message": {"content": [1]}}]}, lambda server: list(server.list_messages(ID))),
        ({"items": [{"id": "e" * 65}]}, lambda server: list(server.list_messages(ID))),
        ({"items": [], "next_page_id": {}}, lambda server: list(server.list_messages(ID))),
    ],
)
def test_response_of_another_shape_is_rejected(response: Any, send: Callable[[AgentServer], Any]) -> None:
    with pytest.raises(WrongServer):
        send(server_that(answering(200, json=response)))


def test_texts_that_not_every_database_can_store_are_changed() -> None:
    said = {"exit_code": 1, "stdout": "a\0b", "stderr": None}
    assert server_that(answering(200, json=said)).run_command("true").stdout == "a\N{REPLACEMENT CHARACTER}b"
    problem = {"detail": [{"loc": ["body", "a\0"], "msg": "no\0"}]}
    with pytest.raises(AgentServerRefused) as failure:
        server_that(answering(422, json=problem)).create_conversation({})
    assert "\0" not in str(failure.value)


def test_error_with_a_long_text_is_parsed_fast() -> None:
    with pytest.raises(AgentServerRefused):
        server_that(answering(422, json={"detail": "[type=" * 100_000})).create_conversation({})


def test_running_agent_is_not_run_again() -> None:
    assert server_that(answering(200, json={"success": True})).run(ID) is True
    assert server_that(answering(409, json={"detail": "already running"})).run(ID) is False
    with pytest.raises(AgentServerRefused):
        server_that(answering(404)).run(ID)
    with pytest.raises(AgentServerUnreachable):
        server_that(answering(429)).run(ID)


@pytest.fixture
def client() -> Iterator[httpx.Client]:
    with open_client(DOOR) as opened:
        yield opened


def test_shared_client_ignores_the_environment_s_proxies(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    assert client.trust_env is False
    assert client.follow_redirects is False


def test_redaction_replaces_longer_secrets_first_and_keeps_short_words() -> None:
    assert redacting(["abcd", "abcdefgh", "", "no"])("no abcdefgh, no abcd") == "no ******, no ******"
