"""Conversations: starting them, and the lists."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlmodel import select

from shared import conversation_starts
from shared.clock import now
from shared.crypto import Vault
from shared.database import Database
from shared.ids import new_id
from shared.jobs import ResumeSandbox, StartConversation, StartSandbox
from shared.models import Node, Sandbox, SandboxSpec, StartTask
from shared.states import Desired, Stage, Status
from shared.store import user_settings
from tests.doubles import RecordingPublisher
from tests.factories import (
    VAULT,
    Person,
    make_conversation,
    make_event,
    make_sandbox,
    make_start_task,
    session_key_of,
)

PATH = "/api/v1/app-conversations"


@pytest.fixture(autouse=True)
def _model(database: Database, user: Person) -> None:
    with database.transaction() as session:
        user_settings.change(session, VAULT, user.id, {"llm_api_key": "sk-test", "llm_model": "openai/test"})


def _start(client: TestClient, person: Person, **request: Any) -> Any:
    answer = client.post(PATH, json=request, headers=person.headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def _status(client: TestClient, person: Person, **request: Any) -> int:
    return int(client.post(PATH, json=request, headers=person.headers).status_code)


def _get(client: TestClient, person: Person, path: str = "", **params: Any) -> Any:
    answer = client.get(PATH + path, params=params, headers=person.headers)
    assert answer.status_code == 200, answer.text
    return answer.json()


def _task(database: Database, task_id: str) -> StartTask:
    with database.reading() as session:
        return session.get_one(StartTask, task_id)


def _all_sandboxes(database: Database) -> list[Sandbox]:
    with database.reading() as session:
        return list(session.exec(select(Sandbox)).all())


@pytest.mark.usefixtures("spec")
class TestStart:
    def test_nothing_asked_for_is_enough(
        self,
        client: TestClient,
        user: Person,
        node: Node,
        spec: SandboxSpec,
        database: Database,
        publisher: RecordingPublisher,
    ) -> None:
        shown = _start(client, user)
        assert shown["status"] == "WORKING"
        assert shown["created_by_user_id"] == user.id
        for name in ("detail", "reason", "app_conversation_id", "sandbox_id", "agent_server_url"):
            assert shown[name] is None
        task, [sandbox] = _task(database, shown["id"]), _all_sandboxes(database)
        assert (task.sandbox_id, task.made_sandbox) == (sandbox.id, True)
        assert (sandbox.spec_id, sandbox.owner_id, sandbox.node_id) == (spec.id, user.id, node.id)
        assert task.due_at is not None
        assert publisher.jobs == [StartSandbox(sandbox.id, node.id), StartConversation(task.id, node.id)]

    def test_all_fields_are_echoed(self, client: TestClient, user: Person) -> None:
        conversation_id = "11111111-2222-4333-8444-555555555555"
        asked = {
            "conversation_id": conversation_id,
            "initial_message": {"role": "user", "content": [{"type": "text", "text": "Hi"}], "run": True},
            "system_message_suffix": "Be brief.",
            "llm_model": "openai/other",
            "agent_profile_id": "default",
            "selected_repository": "group/sub.group/project",
            "selected_branch": "feature/x-1",
            "git_provider": "gitlab",
            "title": "A title",
            "trigger": "gui",
            "pr_number": [7],
            "agent_type": "plan",
            "public": True,
            "plugins": [{"source": "github:o/p", "ref": "v1", "repo_path": None, "parameters": {"a": [1, "b"]}}],
        }
        request = _start(client, user, **asked, unknown="ignored")["request"]
        message = {"role": "user", "run": True, "content": [{"type": "text", "text": "Hi", "cache_prompt": False}]}
        nothing = ("sandbox_id", "processors", "suggested_task", "parent_conversation_id", "secrets")
        assert request == asked | {"initial_message": message} | dict.fromkeys(nothing)

    def test_blank_is_unset(self, client: TestClient, user: Person) -> None:
        blank = dict.fromkeys(("sandbox_id", "llm_model", "selected_repository", "selected_branch", "title"), "")
        request = _start(client, user, **blank, processors=[{"kind": "whatever"}])["request"]
        assert all(request[name] is None for name in (*blank, "processors"))

    def test_secrets_are_masked_and_encrypted(
        self, client: TestClient, user: Person, database: Database, vault: Vault
    ) -> None:
        shown = _start(client, user, secrets={"DEPLOY_KEY": "s3cr3t-value"})
        assert shown["request"]["secrets"] == {"DEPLOY_KEY": "*" * 10}
        task = _task(database, shown["id"])
        assert "s3cr3t" not in str(task.request)
        assert task.secrets is not None
        assert vault.decrypt(task.secrets) == '{"DEPLOY_KEY": "s3cr3t-value"}'
        assert "s3cr3t" not in str(_get(client, user, "/start-tasks", ids=shown["id"]))

    @pytest.mark.parametrize(
        "secrets",
        [
            {f"S{number}": "x" for number in range(51)},
            {"N" * 257: "x"},
            {"no-dashes": "x"},
            {"1ST": "x"},
            {"": "x"},
            {"AGENT_SERVER": "x"},
            {"VSCODE": "x"},
            {"LLM_API_KEY": "x"},
            {"OH_WEBHOOKS_0_BASE_URL": "x"},
            {"BIG": "x" * (64 * 1024 + 1)},
            {"NUMBER": 1},
            ["LIST"],
        ],
        ids=lambda secrets: str(secrets)[:30],
    )
    def test_unusable_secrets_are_refused(self, client: TestClient, user: Person, secrets: Any) -> None:
        assert _status(client, user, secrets=secrets) == 422

    def test_largest_secrets_are_accepted(self, client: TestClient, user: Person) -> None:
        secrets = {f"{'N' * 253}_{number:02}": "x" for number in range(49)} | {"BIG": "x" * 64 * 1024}
        assert len(_start(client, user, secrets=secrets)["request"]["secrets"]) == 50

    def test_a_refusal_does_not_repeat_a_secret(self, client: TestClient, user: Person) -> None:
        asked = {"secrets": {"LLM_API_KEY": "s3cr3t-value", "pasted-s3cr3t": "x"}, "title": ["s3cr3t"]}
        answer = client.post(PATH, json=asked, headers=user.headers)
        assert answer.status_code == 422
        assert "s3cr3t" not in answer.text

    @pytest.mark.parametrize(
        "repository",
        [
            "owner",
            "owner/",
            "/repo",
            "owner//repo",
            "owner/../repo",
            "owner/repo;id",
            "owner/repo&id",
            "owner/repo|id",
            "owner/$(id)",
            "owner/`id`",
            "owner/repo\n",
            "owner/re po",
            "-owner/repo",
            "owner/-repo",
            "https://github.com/owner/repo",
            "owner/" + "r" * 500,
        ],
    )
    def test_unsafe_repositories_are_refused(self, client: TestClient, user: Person, repository: str) -> None:
        assert _status(client, user, selected_repository=repository) == 422

    @pytest.mark.parametrize(
        "branch",
        ["a b", "a..b", "-a", "/a", "a/", "a//b", ".a", "a/.b", "a.lock", "a.", "@", "a@{1}", "a~", "a\\b", "a\n"],
    )
    def test_bad_branches_are_refused(self, client: TestClient, user: Person, branch: str) -> None:
        assert _status(client, user, selected_repository="o/r", selected_branch=branch) == 422

    @pytest.mark.parametrize("name", ["owner/repo", "owner/.github", "o/r.js", "~me/repo", "a/b/c/d"])
    def test_good_repositories_are_accepted(self, client: TestClient, user: Person, name: str) -> None:
        assert _start(client, user, selected_repository=name, selected_branch="a/b_c.d#1")["status"] == "WORKING"

    def test_without_a_model_it_fails_at_once(
        self, client: TestClient, other_user: Person, database: Database, publisher: RecordingPublisher
    ) -> None:
        shown = _start(client, other_user, secrets={"A": "b"})
        assert (shown["status"], shown["reason"]) == ("ERROR", "llm_key_missing")
        assert "/api/settings" in shown["detail"]
        assert _all_sandboxes(database) == []
        assert publisher.jobs == []
        task = _task(database, shown["id"])
        assert (task.due_at, task.secrets) == (None, None)

    def test_a_model_that_needs_no_key_will_do(
        self, client: TestClient, other_user: Person, database: Database
    ) -> None:
        with database.transaction() as session:
            user_settings.change(session, VAULT, other_user.id, {"llm_base_url": "http://localhost:1/v1"})
        assert _start(client, other_user)["status"] == "WORKING"

    def test_a_suggested_task_becomes_a_message(self, client: TestClient, user: Person) -> None:
        task = {
            "git_provider": "github",
            "task_type": "FAILING_CHECKS",
            "repo": "o/r",
            "issue_number": 12,
            "title": "It fails",
        }
        request = _start(client, user, suggested_task=task)["request"]
        text = request["initial_message"]["content"][0]["text"]
        assert "#12" in text
        assert "It fails" in text
        expected = {"trigger": "suggested_task", "selected_repository": "o/r", "git_provider": "github"}
        assert expected.items() <= request.items()
        message = {"content": [{"text": "Hi"}]}
        assert _status(client, user, suggested_task=task, initial_message=message) == 422


class TestStartInASandbox:
    def test_running(self, client: TestClient, user: Person, database: Database, publisher: RecordingPublisher) -> None:
        sandbox = make_sandbox(database, user)
        task = _task(database, _start(client, user, sandbox_id=sandbox.id)["id"])
        assert (task.sandbox_id, task.made_sandbox) == (sandbox.id, False)
        assert publisher.jobs == [StartConversation(task.id, sandbox.node_id)]
        [kept] = _all_sandboxes(database)
        assert kept.generation == sandbox.generation

    @pytest.mark.parametrize(("status", "desired"), [(Status.PAUSED, Desired.PAUSED), (Status.RUNNING, Desired.PAUSED)])
    def test_paused_is_resumed(
        self,
        client: TestClient,
        user: Person,
        database: Database,
        publisher: RecordingPublisher,
        status: Status,
        desired: Desired,
    ) -> None:
        sandbox = make_sandbox(database, user, status=status, desired=desired)
        shown = _start(client, user, sandbox_id=sandbox.id)
        [woken] = _all_sandboxes(database)
        assert (woken.desired, woken.generation) == (Desired.RUNNING, sandbox.generation + 1)
        assert woken.due_at is not None
        assert publisher.jobs == [
            ResumeSandbox(sandbox.id, sandbox.node_id),
            StartConversation(shown["id"], sandbox.node_id),
        ]

    def test_unusable(self, client: TestClient, user: Person, other_user: Person, database: Database) -> None:
        failed = make_sandbox(database, user, status=Status.ERROR)
        deleted = make_sandbox(database, user, status=Status.DELETED)
        theirs = make_sandbox(database, other_user)
        assert _status(client, user, sandbox_id=failed.id) == 400
        for sandbox_id in (deleted.id, theirs.id, "unknown"):
            assert _status(client, user, sandbox_id=sandbox_id) == 404
        with database.reading() as session:
            assert session.exec(select(StartTask)).all() == []


class TestParent:
    def test_what_is_unset_is_inherited(self, client: TestClient, user: Person, database: Database) -> None:
        sandbox = make_sandbox(database, user)
        parent = make_conversation(
            database,
            user,
            sandbox,
            selected_repository="o/r",
            selected_branch="main",
            git_provider="github",
            llm_model="openai/parent",
        )
        inherited = {
            "sandbox_id": sandbox.id,
            "selected_repository": "o/r",
            "selected_branch": "main",
            "git_provider": "github",
            "llm_model": "openai/parent",
            "parent_conversation_id": parent.id,
        }
        request = _start(client, user, parent_conversation_id=parent.id)["request"]
        assert inherited.items() <= request.items()
        request = _start(
            client, user, parent_conversation_id=parent.id, selected_repository="o/other", llm_model="openai/mine"
        )["request"]
        assert request["selected_branch"] is None  # that was a branch of another repository
        assert request["llm_model"] == "openai/mine"

    def test_unknown(self, client: TestClient, user: Person, other_user: Person, database: Database) -> None:
        theirs = make_conversation(database, other_user, make_sandbox(database, other_user))
        for parent_id in (new_id(), theirs.id):
            assert _status(client, user, parent_conversation_id=parent_id) == 404
        assert _status(client, user, parent_conversation_id="nonsense") == 422


@pytest.mark.usefixtures("spec")
class TestChosenId:
    def test_asking_twice_is_asking_once(
        self, client: TestClient, user: Person, database: Database, publisher: RecordingPublisher
    ) -> None:
        conversation_id = new_id()
        first = _start(client, user, conversation_id=conversation_id)
        jobs = list(publisher.jobs)
        assert _start(client, user, conversation_id=conversation_id) == first
        assert len(_all_sandboxes(database)) == 1
        assert publisher.jobs == jobs
        assert _task(database, first["id"]).conversation_id == conversation_id

    def test_asking_at_once_is_asking_once(self, client: TestClient, user: Person, database: Database) -> None:
        conversation_id = new_id()
        with ThreadPoolExecutor(4) as pool:
            asked = [pool.submit(_start, client, user, conversation_id=conversation_id) for _ in range(4)]
            ids = {future.result()["id"] for future in asked}
        assert len(ids) == len(_all_sandboxes(database)) == 1

    def test_a_started_one_shows_its_server(self, client: TestClient, user: Person, database: Database) -> None:
        task = make_start_task(database, user, make_sandbox(database, user), stage=Stage.READY)
        shown = _start(client, user, conversation_id=task.conversation_id)
        assert (shown["id"], shown["app_conversation_id"]) == (task.id, task.conversation_id)
        assert shown["agent_server_url"] == "http://127.0.0.1:18000"

    def test_somebody_was_faster(
        self, client: TestClient, user: Person, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        conversation_id = new_id()
        first = _start(client, user, conversation_id=conversation_id)
        look, looks = conversation_starts._find_earlier, [0]

        def look_too_early(*args: Any) -> StartTask | None:
            looks[0] += 1
            return None if looks[0] == 1 else look(*args)

        monkeypatch.setattr(conversation_starts, "_find_earlier", look_too_early)
        assert _start(client, user, conversation_id=conversation_id)["id"] == first["id"]
        assert len(_all_sandboxes(database)) == 1

    def test_taken(self, client: TestClient, user: Person, other_user: Person, database: Database) -> None:
        theirs = make_start_task(database, other_user)
        mine = make_conversation(database, user, make_sandbox(database, user))
        for conversation_id in (theirs.conversation_id, mine.id):
            assert _status(client, user, conversation_id=conversation_id) == 409


FIRST = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def sandbox(database: Database, user: Person) -> Sandbox:
    return make_sandbox(database, user)


class TestSearch:
    def test_newest_first_and_in_six_orders(
        self, client: TestClient, user: Person, database: Database, sandbox: Sandbox
    ) -> None:
        rows = [
            make_conversation(
                database,
                user,
                sandbox,
                title=title,
                created_at=FIRST + timedelta(days=created),
                updated_at=FIRST + timedelta(days=updated),
            ).id
            for title, created, updated in (("b", 1, 6), ("c", 2, 5), ("a", 3, 4))
        ]
        b, c, a = rows
        expected = {
            None: [a, c, b],
            "CREATED_AT": [b, c, a],
            "CREATED_AT_DESC": [a, c, b],
            "UPDATED_AT": [a, c, b],
            "UPDATED_AT_DESC": [b, c, a],
            "TITLE": [a, b, c],
            "TITLE_DESC": [c, b, a],
        }
        for sort_order, ids in expected.items():
            params = {"sort_order": sort_order} if sort_order else {}
            found, page_id = [], None
            for _ in ids:  # one at a time: the pages fit together
                page = _get(client, user, "/search", limit=1, **params, **({"page_id": page_id} if page_id else {}))
                found += [item["id"] for item in page["items"]]
                page_id = page["next_page_id"]
            assert found == ids
            assert page_id is None

    def test_equal_times_are_paged_without_loss(
        self, client: TestClient, user: Person, database: Database, sandbox: Sandbox
    ) -> None:
        ids = {make_conversation(database, user, sandbox, created_at=FIRST).id for _ in range(5)}
        found, page_id = [], ""
        while page_id is not None:
            page = _get(client, user, "/search", limit=2, **({"page_id": page_id} if page_id else {}))
            found += [item["id"] for item in page["items"]]
            page_id = page["next_page_id"]
        assert len(found) == 5
        assert set(found) == ids

    def test_a_long_title_fits_into_a_page_id(
        self, client: TestClient, user: Person, database: Database, sandbox: Sandbox
    ) -> None:
        for number in range(2):
            make_conversation(database, user, sandbox, title=f"{number}" + "🦊" * 499)
        page = _get(client, user, "/search", limit=1, sort_order="TITLE")
        rest = _get(client, user, "/search", limit=1, sort_order="TITLE", page_id=page["next_page_id"])
        assert rest["items"][0]["title"].startswith("1")

    def test_filters_agree_with_count(
        self, client: TestClient, user: Person, database: Database, sandbox: Sandbox
    ) -> None:
        other_sandbox = make_sandbox(database, user)
        kept = make_conversation(database, user, sandbox, title="Über 100% of_it", created_at=FIRST, updated_at=FIRST)
        later = FIRST + timedelta(days=1)
        make_conversation(database, user, other_sandbox, title="else", created_at=later, updated_at=later)
        middle = (FIRST + timedelta(hours=12)).isoformat()
        for params in (
            {"title__contains": "0% OF_"},
            {"title__contains": "Über"},
            {"created_at__lt": middle},
            {"updated_at__lt": middle},
            {"created_at__gte": FIRST.isoformat(), "created_at__lt": later.isoformat()},
            {"updated_at__gte": "2026-01-01T00:00:00", "updated_at__lt": "2026-01-02T00:00:00"},
            {"created_at__gte": "2026-01-01T02:00:00+02:00", "created_at__lt": "2026-01-01T13:00:00+01:00"},
            {"sandbox_id__eq": sandbox.id},
        ):
            assert [item["id"] for item in _get(client, user, "/search", **params)["items"]] == [kept.id], params
            assert _get(client, user, "/count", **params) == 1
            assert _get(client, user, **params) == _get(client, user, "/search", **params)
        for text in ("100_", "%else%", "/"):
            assert _get(client, user, "/count", title__contains=text) == 0
        assert _get(client, user, "/count") == 2

    def test_sub_conversations(self, client: TestClient, user: Person, database: Database, sandbox: Sandbox) -> None:
        parent = make_conversation(database, user, sandbox, created_at=FIRST)
        children = [
            make_conversation(database, user, sandbox, parent_id=parent.id, created_at=FIRST + timedelta(hours=hour)).id
            for hour in (1, 2)
        ]
        [shown] = _get(client, user, "/search")["items"]
        assert shown["sub_conversation_ids"] == children
        assert _get(client, user, "/count") == 1
        assert _get(client, user, "/count", include_sub_conversations="true") == 3
        found = _get(client, user, "/search", include_sub_conversations="true")["items"]
        assert [item["parent_conversation_id"] for item in found] == [parent.id, parent.id, None]
        assert _get(client, user, ids=parent.id)[0]["sub_conversation_ids"] == children

    def test_only_the_callers_listed_ones(
        self, client: TestClient, user: Person, other_user: Person, database: Database, sandbox: Sandbox
    ) -> None:
        hidden = make_conversation(database, user, sandbox, listed=False)
        theirs = make_conversation(database, other_user, make_sandbox(database, other_user))
        for method in ("/search", ""):
            assert _get(client, user, method) == {"items": [], "next_page_id": None}
        assert _get(client, user, ids=[hidden.id, theirs.id]) == [None, None]
        for conversation_id in (hidden.id, theirs.id):
            assert client.get(f"{PATH}/{conversation_id}", headers=user.headers).status_code == 404


class TestBatch:
    def test_order_is_kept(self, client: TestClient, user: Person, database: Database, sandbox: Sandbox) -> None:
        rows = [make_conversation(database, user, sandbox).id for _ in range(3)]
        dashed = f"{rows[0][:8]}-{rows[0][8:12]}-{rows[0][12:16]}-{rows[0][16:20]}-{rows[0][20:]}"
        found = _get(client, user, ids=[rows[2], new_id(), dashed, rows[1]])
        assert [item and item["id"] for item in found] == [rows[2], None, rows[0], rows[1]]

    def test_refused(self, client: TestClient, user: Person) -> None:
        answer = client.get(PATH, params={"ids": [new_id(), "bad-1", "bad-2"]}, headers=user.headers)
        assert answer.status_code == 400
        assert "bad-1" in answer.json()["detail"]
        assert "bad-2" in answer.json()["detail"]
        most = [new_id() for _ in range(100)]
        assert _get(client, user, ids=most) == [None] * 100
        answer = client.get(PATH, params={"ids": [*most, new_id()]}, headers=user.headers)
        assert answer.status_code == 400


class TestFields:
    def test_while_its_sandbox_runs(
        self, client: TestClient, user: Person, database: Database, sandbox: Sandbox
    ) -> None:
        metrics = {
            "model_name": "m",
            "accumulated_cost": 0.5,
            "max_budget_per_task": None,
            "accumulated_token_usage": {"prompt_tokens": 3, "reasoning_tokens": 2},
        }
        profile = new_id()
        tags = {"acpserver": "claude", "agentprofileid": profile, "agentprofilerevision": "3", "x": "y"}
        conversation = make_conversation(
            database,
            user,
            sandbox,
            execution_status="running",
            metrics=metrics,
            max_budget=2.0,
            tags=tags,
            public=True,
            pr_number=[1],
            working_dir="/workspace/project",
            created_at=FIRST,
        )
        shown = _get(client, user, f"/{conversation.id}")
        assert shown == _get(client, user, ids=conversation.id)[0]
        assert shown == _get(client, user, "/search")["items"][0]
        assert shown["conversation_url"] == f"http://127.0.0.1:18000/api/conversations/{conversation.id}"
        assert shown["session_api_key"] == session_key_of(sandbox)
        assert (shown["sandbox_status"], shown["execution_status"]) == ("RUNNING", "running")
        assert shown["created_at"] == "2026-01-01T00:00:00.000000Z"
        assert shown["created_by_user_id"] == user.id
        assert shown["metrics"]["max_budget_per_task"] == 2.0
        assert shown["metrics"]["accumulated_token_usage"]["reasoning_tokens"] == 2
        assert shown["acp_server"] == "claude"
        assert shown["launched_agent_profile"]["revision"] == 3
        assert shown["launched_agent_profile"]["agent_profile_id"].replace("-", "") == profile
        assert (shown["tags"], shown["public"], shown["pr_number"]) == (tags, True, [1])
        assert shown["workspace"] == {"kind": "LocalWorkspace", "working_dir": "/workspace/project"}

    @pytest.mark.parametrize(
        ("status", "wire"),
        [
            (Status.STARTING, "STARTING"),
            (Status.PAUSED, "PAUSED"),
            (Status.ERROR, "ERROR"),
            (Status.DELETING, "MISSING"),
            (Status.DELETED, "MISSING"),
        ],
    )
    def test_without_a_running_sandbox(
        self, client: TestClient, user: Person, database: Database, status: Status, wire: str
    ) -> None:
        gone = make_sandbox(database, user, status=status, exposed_urls=[{"name": "AGENT_SERVER", "url": "http://a"}])
        conversation = make_conversation(
            database, user, gone, execution_status="running", tags={"agentprofileid": "junk"}
        )
        make_event(database, conversation)
        shown = _get(client, user, f"/{conversation.id}")
        assert shown["sandbox_status"] == wire
        for name in ("execution_status", "conversation_url", "session_api_key", "launched_agent_profile"):
            assert shown[name] is None

    def test_a_wish_for_deletion_is_enough_to_be_missing(
        self, client: TestClient, user: Person, database: Database
    ) -> None:
        leaving = make_sandbox(database, user, desired=Desired.DELETED)
        make_conversation(database, user, leaving)
        assert _get(client, user, "/search")["items"][0]["sandbox_status"] == "MISSING"


def test_a_list_takes_few_queries(
    client: TestClient, user: Person, database: Database, sandbox: Sandbox, count_queries: Any
) -> None:
    for _ in range(20):
        make_conversation(database, user, sandbox, updated_at=now())
    _get(client, user, "/search")  # the key's last use is written once a minute
    with count_queries() as few:
        _get(client, user, "/search", limit=1)
    with count_queries() as many:
        assert len(_get(client, user, "/search")["items"]) == 20
    assert len(many) == len(few) <= 4
