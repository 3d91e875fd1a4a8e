"""A start's secrets are in no log line and no row, and those that can't be used end it with a reason."""

import json
import logging
from typing import Any

import pytest

from shared.models import StartTask
from shared.states import Reason, Stage
from tests.factories import ApiUser
from tests.fakes.agent_server import FakeAgentServer
from tests.worker.conversations.start_failures.failures import assert_no_secret, logged, unreachable
from tests.worker.scenarios import (
    SECRETS,
    assert_failed,
    change,
    conversation_of,
    request_start,
    task_of,
)
from worker.context import WorkerContext
from worker.conversations.start import start_conversation


class TestSecrets:
    def test_secrets_are_in_no_log_line_and_no_row(
        self,
        context: WorkerContext,
        user: ApiUser,
        sandbox_id: str,
        server: FakeAgentServer,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level(logging.DEBUG)
        task_id = request_start(context, user, sandbox_id, selected_repository="acme/app")
        server.before = unreachable
        start_conversation(context, task_id)
        server.before = lambda _method: None
        start_conversation(context, task_id)
        task = task_of(context, task_id)
        assert task.stage == Stage.READY
        assert "conversation_ready" in logged(caplog)
        assert_no_secret(logged(caplog) + repr(task) + repr(conversation_of(context, task_id)))
        assert_no_secret("".join(command.text for command in server.commands))

    def test_internal_error_shows_no_secrets(
        self,
        context: WorkerContext,
        user: ApiUser,
        sandbox_id: str,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        caplog.set_level(logging.DEBUG)

        def fail(_inputs: Any) -> None:
            raise RuntimeError(" ".join(SECRETS))

        monkeypatch.setattr("worker.conversations.start.build_request", fail)
        task_id = request_start(context, user, sandbox_id)
        start_conversation(context, task_id)
        task = task_of(context, task_id)
        assert (task.stage, task.attempt) == (Stage.WAITING_FOR_SANDBOX, 1)
        assert task.due_at
        assert "RuntimeError" in logged(caplog)
        assert_no_secret(logged(caplog))

    def test_secret_that_an_update_has_made_unusable_ends_the_start(
        self, context: WorkerContext, user: ApiUser, sandbox_id: str, server: FakeAgentServer
    ) -> None:
        task_id = request_start(context, user, sandbox_id)
        sealed = context.vault.encrypt(json.dumps({"not-usable": SECRETS[0]}))
        change(context, StartTask, task_id, secrets=sealed)
        start_conversation(context, task_id)
        task = assert_failed(context, task_id, Reason.UNUSABLE_SECRET, "name")
        assert_no_secret(task.detail or "")
        assert server.calls == []
