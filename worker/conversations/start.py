"""Starting a conversation: the stages of a start task (wire contract 2.2).

Each stage is written before it begins and is safe to repeat: if a worker dies during a stage, another worker begins the
same stage. A stage without work is skipped; so is SETTING_UP_SKILLS, which the agent server does itself.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any

import structlog

from shared.agent_server.errors import AgentServerRefused, AgentServerUnreachable, DoorUnavailable, WrongServer
from shared.changes import recorder as change_recorder
from shared.changes.recorder import Usage
from shared.clock import now
from shared.conversations import deletion as conversation_deletion
from shared.conversations import pending_messages, shared_clones, start_tasks
from shared.conversations import queries as conversation_queries
from shared.db.database import UNAVAILABLE, Session
from shared.errors import Cancelled
from shared.leasing import leases
from shared.models import Conversation, Sandbox, StartTask
from shared.queue.jobs import DeleteSandbox, DeliverMessages, StartConversation
from shared.sandboxes import deadlines
from shared.sql.statements import get_locked
from shared.states import FINAL_STAGES, Reason, Stage, Status
from worker.agent_server import transport
from worker.agent_server.client import AgentServer
from worker.context import LaneJob, WorkerContext
from worker.conversations.agent_request import TITLE_PROFILE, LlmNotConfigured, UnusableSecret, build_request
from worker.conversations.refresh import refresh_conversation
from worker.conversations.start_inputs import StartFailed, StartInputs, check_sandbox, load_inputs
from worker.lease_runner import UNAVAILABLE_SECONDS, Retry, run_leased, taking_slot
from worker.workspace.failures import RepositoryCloneFailed, WorkspaceSetupFailed
from worker.workspace.git_remotes import install_logins
from worker.workspace.setup import (
    Project,
    ProjectContents,
    install_git_hooks,
    prepare_repository,
    read_contents,
    run_setup_script,
)

log = structlog.get_logger()

# Total timeout of a run's requests to an agent server: more than a clone, a setup script and a create may take.
RUN_SECONDS = 1200.0


def start_conversation(context: WorkerContext, task_id: str) -> None:
    """Execute the stages of a start task that can be executed now."""
    run_leased(context, StartTask, task_id, lambda *claimed: ConversationStart(*claimed).run(), _give_up)


class ConversationStart:
    """One worker's leased run on one start task."""

    def __init__(self, context: WorkerContext, task: StartTask) -> None:
        """Take the row as claimed; every write checks its fencing token."""
        self._context = context
        self._task = task
        self._contents = ProjectContents()
        # An earlier run may have sent the create request already.
        self._may_be_created = task.stage == Stage.STARTING_CONVERSATION
        self._ends_at = time.monotonic() + RUN_SECONDS

    def run(self) -> None:
        """Continue from the stage in the row.

        Raises:
            Retry: the agent server did not respond; the next attempt may succeed.
            LeaseLost: another worker owns the task now.
        """
        if self._task.stage in FINAL_STAGES:
            return
        try:
            self._check_cancelled(self._task.cancelled_at)
            with transport.cancellable(self._require_current):
                self._run_when_ready()
        except Cancelled:
            self._fail(Reason.CANCELLED, "cancelled by its owner")
        except StartFailed as failure:
            self._fail(failure.reason, str(failure))
        except (WorkspaceSetupFailed, LlmNotConfigured, UnusableSecret, AgentServerRefused) as error:
            self._fail(Reason(error.reason), str(error))
        except (AgentServerUnreachable, WrongServer) as error:
            self._retry_or_fail(error)

    def give_up(self) -> None:
        """Write ERROR with the reason that this service has a bug."""
        if self._task.stage not in FINAL_STAGES:
            self._fail(Reason.INTERNAL_ERROR, "the worker failed in every attempt; its log has the error")

    def _check_cancelled(self, cancelled_at: datetime | None) -> None:
        if cancelled_at is not None:
            raise Cancelled(f"start task {self._task.id} is cancelled")

    def _require_current(self) -> None:
        """Check during a request whether its response is still needed, and whether the sandbox can respond.

        Raises:
            Cancelled: the owner has cancelled the start.
            StartFailed: the sandbox was paused or deleted, or has failed.
            LeaseLost: another worker owns the task now.
        """
        self._context.renewer.mark_progress(StartTask, self._task)
        try:
            database, row = self._context.database, (self._task.id, self._task.fence)
            [cancelled_at] = leases.read(database, StartTask, *row, ("cancelled_at",))
            with database.reading() as session:
                sandbox = session.get(Sandbox, self._task.sandbox_id)
        except UNAVAILABLE:
            return  # the store does not respond: the run continues
        self._check_cancelled(cancelled_at)
        check_sandbox(sandbox)

    def _run_when_ready(self) -> None:
        sandbox = self._await_sandbox()
        if sandbox is None:
            return  # the write of the sandbox's status enqueues the task
        job = StartConversation(self._task.id, self._context.settings.node)
        lane_job = LaneJob(job, sandbox.id, self._task.owner_id)
        with taking_slot(self._context, self._context.agents, lane_job), transport.timeout(RUN_SECONDS):
            self._run_stages(sandbox)

    def _run_stages(self, sandbox: Sandbox) -> None:
        inputs = load_inputs(self._context, self._task, sandbox)
        build_request(inputs.agent)  # an invalid request fails before any stage begins
        server = self._context.agent_server(sandbox, redact=inputs.redact)
        if server is None:
            raise AgentServerUnreachable("the sandbox has no agent server's address yet")
        self._context.renew_network(sandbox)
        works: tuple[tuple[Stage, Callable[[AgentServer, StartInputs], None]], ...] = (
            (Stage.PREPARING_REPOSITORY, self._prepare_repository),
            (Stage.RUNNING_SETUP_SCRIPT, self._run_setup_script),
            (Stage.SETTING_UP_GIT_HOOKS, self._install_git_hooks),
            (Stage.STARTING_CONVERSATION, self._create_conversation),
        )
        order = list(Stage)
        if order.index(Stage(self._task.stage)) > order.index(Stage.PREPARING_REPOSITORY):
            self._contents = read_contents(server, inputs.project)
        for stage, work in works:
            if order.index(stage) >= order.index(Stage(self._task.stage)) and self._has_work(stage):
                self._enter(stage, inputs)
                work(server, inputs)
        self._finish()

    def _has_work(self, stage: Stage) -> bool:
        match stage:
            case Stage.RUNNING_SETUP_SCRIPT:
                return self._contents.setup_script
            case Stage.SETTING_UP_GIT_HOOKS:  # the setup script may have created a hook
                return self._contents.git_hook or self._contents.setup_script
            case _:
                return True

    def _await_sandbox(self) -> Sandbox | None:
        """The sandbox if it runs; None while it starts."""
        if self._task.stage == Stage.WORKING:
            self._enter(Stage.WAITING_FOR_SANDBOX)
        with self._context.database.reading() as session:
            sandbox = check_sandbox(session.get(Sandbox, self._task.sandbox_id))
        return sandbox if sandbox.status == Status.RUNNING else None

    def _prepare_repository(self, server: AgentServer, inputs: StartInputs) -> None:
        project, repository = inputs.project, inputs.project.repository
        self._contents = prepare_repository(server, project, partial(self._require_idle_clone, project))
        if repository is not None and repository.branch is not None and not repository.keeps_branch:
            with self._context.database.transaction() as session:
                shared_clones.set_branch(session, self._task, project.folder, repository.branch)
        install_logins(server, inputs.logins)

    def _require_idle_clone(self, project: Project, head: str) -> None:
        """Refuse to check out another branch than `head` while another conversation is using the clone."""
        with self._context.database.reading() as session:
            other = shared_clones.find_at_work(session, self._task, project.folder)
        if other is not None:
            advice = "wait until its agent stops, request that branch, or start in another sandbox"
            raise RepositoryCloneFailed(f"conversation {other} is using the clone, on {project.redact(head)}: {advice}")

    def _run_setup_script(self, server: AgentServer, inputs: StartInputs) -> None:
        run_setup_script(server, inputs.project.folder, start_id=self._task.id, redact=inputs.redact)

    def _install_git_hooks(self, server: AgentServer, inputs: StartInputs) -> None:
        install_git_hooks(server, inputs.project.folder, redact=inputs.redact)

    def _create_conversation(self, server: AgentServer, inputs: StartInputs) -> None:
        # The path of a plan depends on the provider that has the repository.
        provider = inputs.agent.git_provider or self._contents.provider
        body = build_request(replace(inputs.agent, git_provider=provider))
        self._provide_title_llm(server, inputs)
        server.create_conversation(body)
        if self._may_be_created and inputs.agent.initial_message:
            self._send_lost_message(server, body)
        if inputs.agent.title:
            server.rename_conversation(self._task.conversation_id, inputs.agent.title)

    def _provide_title_llm(self, server: AgentServer, inputs: StartInputs) -> None:
        """Store the LLM for titles. If the server refuses it, the agent's own LLM generates the title."""
        if inputs.agent.title_llm is None:
            return
        try:
            server.keep_profile(TITLE_PROFILE, inputs.agent.title_llm)
        except AgentServerRefused as error:
            log.warning("title_llm_refused", task=self._task.id, detail=str(error))

    def _send_lost_message(self, server: AgentServer, body: dict[str, Any]) -> None:
        """Send the initial message if an interrupted create has lost it: a repeated create sends none.

        The server may still execute the first create: it lists a conversation, and returns it to a repeated create,
        before it has built the tools and taken the message.
        """
        known = server.get_conversation(self._task.conversation_id)
        if known is None or known.get("last_user_message_id") is not None:
            return
        if (seconds := self._seconds_until_timeout()) > 0:
            raise Retry("the first message may still be delivered", seconds=seconds, counts=False)
        server.send_message(self._task.conversation_id, body["initial_message"])

    def _seconds_until_timeout(self) -> float:
        """Seconds that the first create may still take; the conversation's row was written just before it."""
        with self._context.database.reading() as session:
            began = session.get_one(Conversation, self._task.conversation_id).created_at
        if began > now() + leases.FARTHEST:
            return 0.0  # the row was written with a wrong clock: do not wait until that time
        return self._context.settings.first_message_timeout_seconds - max(0.0, (now() - began).total_seconds())

    def _enter(self, stage: Stage, inputs: StartInputs | None = None) -> None:
        log.info("stage", task=self._task.id, stage=stage.value, sandbox=self._task.sandbox_id)
        with self._context.database.transaction() as session:
            if stage == Stage.STARTING_CONVERSATION:
                # The sandbox first, as a deletion does: the conversation's foreign key would lock it after the task.
                get_locked(session, Sandbox, self._task.sandbox_id, key_share=True)
            start_tasks.advance(session, self._task, stage)
            if inputs is not None and stage == Stage.STARTING_CONVERSATION:
                self._add_conversation(session, inputs)

    def _add_conversation(self, session: Session, inputs: StartInputs) -> None:
        """Add the conversation's row, unlisted: its webhooks are accepted from now on, its owner sees it when READY."""
        if conversation_queries.find(session, self._task.conversation_id) is None:
            session.add(inputs.conversation(self._task, self._contents))
            change_recorder.record_usage(session, self._task.owner_id, Usage(conversations=1))

    def _finish(self) -> None:
        with self._context.database.transaction() as session:
            deadlines.record_activity(session, str(self._task.sandbox_id))
            self._check_parent(session)
            start_tasks.advance(session, self._task, Stage.READY)
            conversation = conversation_queries.publish(session, self._task.conversation_id)
            has_pending = conversation is not None and pending_messages.schedule_delivery(session, conversation)
        if has_pending:
            self._context.publisher.publish(DeliverMessages(self._task.conversation_id, self._context.settings.node))
        log.info("conversation_ready", task=self._task.id, conversation=self._task.conversation_id)

    def _check_parent(self, session: Session) -> None:
        """Fail if the parent is deleted: its deletion misses a start that was accepted at the same moment."""
        parent_id = self._task.request.get("parent_conversation_id")
        if parent_id is not None and start_tasks.is_parent_deleted(session, self._task, parent_id):
            raise Cancelled(f"the parent conversation {parent_id} is deleted")

    def _retry_or_fail(self, error: AgentServerUnreachable | WrongServer) -> None:
        """Retry: the sandbox may have a new URL, or another sandbox its old URL. Retries for the door have no max."""
        if isinstance(error, DoorUnavailable):
            raise Retry(str(error), seconds=UNAVAILABLE_SECONDS, counts=False) from None
        if self._task.attempt + 1 < self._context.settings.max_attempts and time.monotonic() < self._ends_at:
            raise Retry(str(error)) from None
        self._fail(Reason(error.reason), str(error))

    def _fail(self, reason: Reason, detail: str) -> None:
        """Write ERROR and remove what the start has created: the conversation, and a sandbox that nothing else uses."""
        log.warning("start_failed", task=self._task.id, reason=reason.value)
        # A sandbox that stays must not keep a conversation that no list shows.
        begun = self._task.stage == Stage.STARTING_CONVERSATION
        with self._context.database.transaction() as session:
            # The sandbox first, as in `StatusWriter._write`: two lock orders would be a deadlock.
            node_id = start_tasks.delete_unused_sandbox(session, self._task, now())
            start_tasks.advance(session, self._task, Stage.ERROR, reason=reason, detail=detail)
            has_more = conversation_deletion.delete_unlisted(session, self._task.conversation_id, begun=begun)
            pending_messages.delete_all(session, self._task.conversation_id)
        if has_more:
            # After the write: had this worker lost the lease, the conversation would be the next worker's.
            refresh_conversation(self._context, self._task.conversation_id)
        if node_id is not None:
            self._context.publisher.publish(DeleteSandbox(str(self._task.sandbox_id), node_id))


def _give_up(context: WorkerContext, task: StartTask) -> None:
    ConversationStart(context, task).give_up()
