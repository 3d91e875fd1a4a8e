"""Each response names its request's id and is counted by route, and no cache may store it: it may contain keys."""

from contextvars import Context
from typing import Any

import pytest
from celery import Celery
from fastapi.testclient import TestClient

from api.app import create_app
from api.paths import DOCS_ASSETS
from api.request.context import Context as ApiContext
from shared.db.database import Database
from shared.models import Conversation, Sandbox
from shared.observability import correlation, metrics
from shared.queue.broker import Publisher
from shared.queue.jobs import PauseSandbox
from tests.api.operations import all_operations
from tests.factories import ApiUser, session_key_of

SANDBOXES, CHANGES = "/api/v1/sandboxes", "/api/v1/changes"
HEX = 32


class TestRequestId:
    @pytest.mark.parametrize("path", ["/health", "/nothing", SANDBOXES, "/sandbox/x/alive", "/login", "/openapi.json"])
    def test_each_response_has_a_new_id(self, client: TestClient, path: str) -> None:
        first, second = (client.get(path).headers["X-Request-ID"] for _ in range(2))
        assert len(first) == len(second) == HEX
        assert first != second

    @pytest.mark.parametrize("given", ["a", "0af7651916cd43dd8448eb211c80319c", "edge-1.2_3", "x" * 64])
    def test_well_formed_id_of_the_client_is_used(self, client: TestClient, given: str) -> None:
        response = client.get(SANDBOXES, headers={"X-Request-ID": given})
        assert response.headers.get_list("X-Request-ID") == [given]
        assert response.json()["request_id"] == given

    @pytest.mark.parametrize("given", ["", " ", "x" * 65, "a b", "a\tb", "<b>", "-a", "é", 'a"b', "aw_a-key"])
    def test_malformed_id_of_the_client_is_replaced(self, client: TestClient, given: str) -> None:
        response = client.get("/health", headers={"X-Request-ID": given.encode("latin-1")})
        assert len(response.headers["X-Request-ID"]) == HEX

    def test_each_error_contains_the_id(
        self, client: TestClient, user: ApiUser, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        json_type, bad_id = {"Content-Type": "application/json"}, f"{SANDBOXES}/not-an-id"
        for status, method, path, content, headers in (
            (400, "GET", bad_id, None, user.headers),
            (401, "GET", SANDBOXES, None, {}),
            (404, "GET", "/api/nothing", None, {}),
            (404, "GET", "/api/settings", None, user.headers),
            (405, "PUT", SANDBOXES, None, user.headers),
            (422, "POST", "/api/v1/app-conversations", "{", user.headers | json_type),
            (422, "GET", "/api/v1/app-conversations/search?limit=0", None, user.headers),
            (422, "GET", "/health?a=%00", None, {}),
        ):
            response = client.request(method, path, content=content, headers=headers)
            assert (response.status_code, response.json()["request_id"]) == (
                status,
                response.headers["X-Request-ID"],
            ), path
        monkeypatch.setattr("api.routes.ops.health.STARTED", None)
        response = client.get("/server_info")
        assert (response.status_code, response.json()["request_id"]) == (500, response.headers["X-Request-ID"])

    def test_log_lines_contain_the_id(
        self, client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr("api.routes.ops.health.STARTED", None)
        client.get("/server_info", headers={"X-Request-ID": "edge-1"})
        events = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
        assert [event["request_id"] for event in events if event["event"] == "internal_error"] == ["edge-1"]

    def test_jobs_carry_the_id(
        self, api_context: ApiContext, user: ApiUser, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sent: list[dict[str, Any]] = []
        app = Celery("tests", set_as_current=False)
        monkeypatch.setattr(app, "send_task", lambda _task, **options: sent.append(options))
        monkeypatch.setattr(api_context.publisher, "publish", Publisher(app).publish)
        with TestClient(create_app(api_context)) as client:
            path = f"{SANDBOXES}/{sandbox.id}/pause"
            assert client.post(path, headers=user.headers | {"X-Request-ID": "edge-1"}).status_code == 200
        [options] = sent
        assert options["args"] == [sandbox.id]
        assert options["headers"].keys() == {correlation.REQUEST_ID, correlation.PUBLISHED_AT}
        assert options["headers"][correlation.REQUEST_ID] == "edge-1"

    def test_job_without_a_request_carries_no_id(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sent: list[dict[str, Any]] = []
        app = Celery("tests", set_as_current=False)
        monkeypatch.setattr(app, "send_task", lambda _task, **options: sent.append(options))
        Context().run(Publisher(app).publish, PauseSandbox("a" * 32, "node-a"))
        assert sent[0]["headers"].keys() == {correlation.PUBLISHED_AT}


def responses() -> dict[tuple[str, ...], float]:
    """The counted responses, by method, route and status."""
    return {
        tuple(sample.labels[name] for name in ("method", "route", "status")): sample.value
        for metric in metrics.OWN.collect()
        for sample in metric.samples
        if sample.name == "agent_workspace_http_responses_total"
    }


def failed_requests() -> float:
    return next(
        sample.value
        for metric in metrics.OWN.collect()
        for sample in metric.samples
        if sample.name == "agent_workspace_requests_failed_total"
    )


class TestCounts:
    @pytest.mark.parametrize(
        ("method", "path", "label"),
        [
            ("GET", f"{SANDBOXES}/search", (f"{SANDBOXES}/search", "2xx")),
            ("HEAD", f"{SANDBOXES}/search", (f"{SANDBOXES}/search", "2xx")),
            ("GET", f"{SANDBOXES}/{{id}}", (f"{SANDBOXES}/{{sandbox_id}}", "2xx")),
            ("POST", f"{SANDBOXES}/{{id}}/pause", (f"{SANDBOXES}/{{sandbox_id}}/pause", "2xx")),
            ("GET", "/api/organizations/any/profiles", ("/api/organizations/{organization_id}/profiles", "4xx")),
            ("GET", "/sandbox/{id}/api/x?session_api_key=no", ("/sandbox/{sandbox_id}", "4xx")),
            ("GET", "/any/thing", ("other", "4xx")),
            ("PROPFIND", "/any/thing", ("other", "4xx")),
        ],
    )
    def test_label_is_the_routes_template(
        self, client: TestClient, user: ApiUser, sandbox: Sandbox, method: str, path: str, label: tuple[str, str]
    ) -> None:
        before = responses()
        for _ in range(2):  # the second response of a list is cached
            client.request(method, path.replace("{id}", sandbox.id), headers=user.headers)
        counted = {key: value - before.get(key, 0) for key, value in responses().items()}
        expected = (method if method != "PROPFIND" else "other", *label)
        assert {key: value for key, value in counted.items() if value} == {expected: 2}

    def test_internal_error_is_counted(self, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("api.routes.ops.health.STARTED", None)
        key = ("GET", "/server_info", "5xx")
        before, failed = responses().get(key, 0), failed_requests()
        client.get("/server_info")
        assert (responses()[key], failed_requests()) == (before + 1, failed + 1)

    def test_sandbox_that_does_not_respond_is_no_internal_error(
        self, client: TestClient, user: ApiUser, sandbox: Sandbox
    ) -> None:
        failed = failed_requests()
        assert client.get(f"/sandbox/{sandbox.id}/alive", headers=user.headers).status_code >= 500
        assert failed_requests() == failed

    def test_client_port_is_counted_as_the_sandbox_path(self, api_context: ApiContext, sandbox: Sandbox) -> None:
        settings = api_context.settings.model_copy(update={"client_port": 80})
        object.__setattr__(api_context, "settings", settings)
        key = ("GET", "/sandbox/{sandbox_id}", "4xx")
        before = responses().get(key, 0)
        with TestClient(create_app(api_context), base_url="http://testserver:80") as client:
            client.get("/api/any", headers={"X-Session-API-Key": f"{session_key_of(sandbox)}x"})
        assert responses()[key] == before + 1


def test_response_of_every_operation_is_not_cacheable(
    client: TestClient, user: ApiUser, sandbox: Sandbox, conversation: Conversation
) -> None:
    for operation in all_operations(client):
        if operation.path == CHANGES:
            continue
        url = operation.url(any=conversation.id, sandbox_id=sandbox.id)
        body: Any = {} if operation.has_body else None
        for headers in ({}, user.headers):
            response = client.request(operation.method, url, json=body, headers=headers, follow_redirects=False)
            assert response.headers.get_list("Cache-Control") == ["no-store"], (operation, response.status_code)


@pytest.mark.parametrize(("method", "path"), [("GET", "/api/nothing"), ("PUT", "/api/keys"), ("HEAD", "/alive")])
def test_error_response_is_not_cacheable(client: TestClient, method: str, path: str) -> None:
    assert client.request(method, path).headers["Cache-Control"] == "no-store"


@pytest.mark.usefixtures("sandbox")
def test_response_from_the_response_cache_is_not_cacheable(client: TestClient, user: ApiUser) -> None:
    for _ in range(2):
        response = client.get("/api/v1/sandboxes/search", headers=user.headers)
        assert (response.status_code, response.headers["Cache-Control"]) == (200, "no-store")


def test_internal_error_is_not_cacheable(
    client: TestClient, user: ApiUser, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "transaction", None)
    response = client.post("/api/v1/sandboxes", headers=user.headers)
    assert (response.status_code, response.headers["Cache-Control"]) == (500, "no-store")


def test_docs_assets_are_cacheable(client: TestClient) -> None:
    response = client.get(f"{DOCS_ASSETS}/swagger-ui.css")
    assert (response.status_code, "Cache-Control" in response.headers, "ETag" in response.headers) == (200, False, True)
