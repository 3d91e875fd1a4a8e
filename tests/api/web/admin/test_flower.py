"""Flower behind the operators' login: the API adds Flower's password to requests and removes the operator's cookie."""

from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from api.app import create_app
from api.request.context import Context
from deploy.service.flower_tasks import make_formatter
from shared.db.database import Database
from shared.models import Sandbox
from tests.api.web.admin.conftest import ORIGIN, sign_in
from tests.factories import ApiUser, make_conversation, make_sandbox, make_start_task
from tests.services.hostile_server import MODES, answering, hostile


class Task:
    """A task as Celery's events describe it."""

    def __init__(self, name: str, args: str | None) -> None:
        self.name, self.args = name, args


def test_requests_are_forwarded_with_flower_s_password_only(
    context: Context, operator: ApiUser, tmp_path: Path
) -> None:
    page = answering(b"<p>jobs</p>", Content_Type="text/html", Set_Cookie="aw_session=tossed; Path=/")
    with hostile(page) as server:
        port = int(server.url.rpartition(":")[2])
        settings = context.settings.model_copy(update={"var_dir": tmp_path, "flower_port": port})
        with TestClient(create_app(replace(context, settings=settings))) as client:
            sign_in(client, operator)
            assert "does not respond" in client.get("/admin/flower/tasks").text  # the password does not exist yet
            (tmp_path / "flower.password").write_text("secret\n")
            response = client.get("/admin/flower/task/a%2Fb?x=1%20")
            assert client.post("/admin/flower/tasks/datatable", data={"draw": "1"}, headers=ORIGIN).status_code == 200
            assert client.post("/admin/flower/tasks/datatable", headers={"Origin": "null"}).status_code == 403
            assert client.delete("/admin/flower/task/a", headers=ORIGIN).status_code == 405
            for outside in ("%2e%2e/metrics", "..%2fmetrics", "%2E/x", "task/%2e%2e"):
                assert client.get(f"/admin/flower/{outside}").status_code == 404
    assert (response.status_code, response.text, "set-cookie" in response.headers) == (200, "<p>jobs</p>", False)
    assert "frame-ancestors 'none'" in response.headers["Content-Security-Policy"]
    get, post = server.requested
    assert get.startswith(b"GET /admin/flower/task/a%2Fb?x=1%20 HTTP/1.1")
    assert b"Content-Length: 6" in post
    for requested in (get, post):
        assert b"authorization: Basic Zmxvd2VyOnNlY3JldA==" in requested.replace(b"Authorization", b"authorization")
        assert b"cookie" not in requested.lower()


def test_missing_flower_is_reported_on_a_page(browser: TestClient) -> None:
    response = browser.get("/admin/flower/tasks")
    assert (response.status_code, "AW_FLOWER_URL" in response.text) == (502, True)


def test_redirect_of_flower_to_no_host_is_reported_on_a_page(context: Context, operator: ApiUser) -> None:
    with hostile(MODES["moved to no host"]) as server:
        settings = context.settings.model_copy(update={"flower_url": server.url})
        with TestClient(create_app(replace(context, settings=settings)), headers=ORIGIN) as browser:
            sign_in(browser, operator)
            response = browser.get("/admin/flower/tasks")
    assert (response.status_code, "AW_FLOWER_URL" in response.text) == (502, True)


@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ("sandboxes.start", "sandbox"),
        ("conversations.deliver", "conversation"),
        ("conversations.start", "start of a conversation"),
    ],
)
def test_jobs_are_shown_with_their_owner(
    database: Database, user: ApiUser, sandbox: Sandbox, task: str, kind: str
) -> None:
    rows: dict[str, str] = {
        "sandbox": sandbox.id,
        "conversation": make_conversation(database, user, sandbox, title="a secret title").id,
        "start of a conversation": make_start_task(database, user).id,
    }
    shown = make_formatter(database)(Task(task, f"['{rows[kind]}']")).args
    assert shown == f"alice · {kind} {rows[kind]}"


def test_jobs_without_an_owner_are_shown(database: Database, user: ApiUser) -> None:
    warm, show = make_sandbox(database, user, owner_id=None), make_formatter(database)
    assert show(Task("sandboxes.warm", f"('{warm.id}',)")).args == f"warm pool · sandbox {warm.id}"
    assert show(Task("sandboxes.check", f"['{'0' * 32}']")).args == f"removed · sandbox {'0' * 32}"
    for odd in (None, "[]", "['x']", "[1, 2]"):
        assert show(Task("sandboxes.check", odd)).args == odd
