"""The actions of the demo, and what it shows of each."""

from dataclasses import dataclass, field

from rich.console import Console

from deploy.demo.client import DemoService
from deploy.demo.deadline import DemoDeadline
from deploy.demo.display import answer_of, show_event, show_fields, show_heading
from deploy.demo.errors import DemoError
from deploy.demo.script import Finish, Json, RunCommand, Script

MODEL = "openai/demo"
REQUEST = "Write a greeting with today's date into greeting.txt, and tell me what machine you are on."
SCRIPT = Script(
    responses=(
        RunCommand(
            'echo "Hello from a sandbox on $(date +%F)" > greeting.txt; cat greeting.txt; uname -sm; id -un',
            "write the greeting and show the machine",
        ),
        Finish("greeting.txt is written and read back. The lines below it say what runs here, and as whom."),
    ),
    title="A greeting from a sandbox",
)
ENDED = {"finished", "error", "stuck"}
TITLE_WAIT = 20.0


@dataclass
class Story:
    """One run of the demo against a service, shown on a console."""

    service: DemoService
    console: Console
    deadline: DemoDeadline
    sandbox_id: str | None = None
    shown: set[str] = field(default_factory=set)
    answered: bool = False

    def play(self, base_url: str, model_key: str) -> str:
        """Start a conversation with the model at `base_url`, show it to its end, and return its id."""
        settings = {"llm_model": MODEL, "llm_api_key": model_key, "llm_base_url": base_url}
        self.service.store_settings(settings)
        conversation_id = self.start()
        self.follow(conversation_id)
        self.show_sandbox()
        self.show_conversation(conversation_id)
        return conversation_id

    def start(self) -> str:
        """Start the conversation, show each stage with its seconds, and return the conversation's id."""
        show_heading(self.console, "Starting a conversation")
        task = self.service.start_task(self.service.start_conversation(REQUEST)["id"])
        stage, since = task["status"], 0.0
        with self.console.status(stage) as spinner:
            for elapsed in self.deadline.polls("the conversation to start"):
                task = self.service.start_task(task["id"])
                self.sandbox_id = task.get("sandbox_id") or self.sandbox_id
                if task["status"] != stage:
                    self.console.print(f"  {stage:<24} {elapsed - since:5.1f} s")
                    stage, since = task["status"], elapsed
                    spinner.update(stage)
                if stage in {"READY", "ERROR"}:
                    break
        self.console.print(f"  {stage:<24} after {elapsed:.1f} s in all")
        if stage == "ERROR":
            raise DemoError(f"the conversation did not start: {task.get('detail') or 'no detail'}")
        return str(task["app_conversation_id"])

    def follow(self, conversation_id: str) -> None:
        """Show events as they arrive, until the run has ended and its answer was shown."""
        show_heading(self.console, "The agent at work")
        with self.console.status("waiting for the agent"):
            for _ in self.deadline.polls("the agent's answer"):
                status = self.service.conversation(conversation_id).get("execution_status")
                # The status is read before the events: the events of an ended run are then in this response or, if
                # they arrive more slowly than the status, in a later one.
                self.show_new(self.service.events(conversation_id))
                if status in {"error", "stuck"}:
                    raise DemoError(f"the agent ended in the state {status}")
                if status in ENDED and self.answered:
                    return

    def show_new(self, events: list[Json]) -> None:
        """Show the events that were not shown before."""
        for event in events:
            if event["id"] not in self.shown:
                self.shown.add(event["id"])
                self.answered = self.answered or answer_of(event) is not None
                show_event(self.console, event)

    def show_sandbox(self) -> None:
        """Show the sandbox of the conversation."""
        show_heading(self.console, "The sandbox it ran in")
        sandbox = self.service.sandbox(self.sandbox_id) if self.sandbox_id else None
        if sandbox is None:
            raise DemoError(f"the service has no sandbox {self.sandbox_id}")
        urls = {entry["name"]: entry["url"] for entry in sandbox.get("exposed_urls") or []}
        fields = [("id", sandbox["id"]), ("status", sandbox["status"]), ("spec", sandbox["sandbox_spec_id"])]
        show_fields(self.console, [*fields, ("agent server", urls.get("AGENT_SERVER", "not exposed"))])

    def show_conversation(self, conversation_id: str) -> None:
        """Show the conversation as in lists, after its title has arrived."""
        show_heading(self.console, "The conversation, as the service lists it")
        for waited in self.deadline.polls("the conversation's title"):
            conversation = self.service.conversation(conversation_id)
            if conversation.get("title") == SCRIPT.title or waited > TITLE_WAIT:
                break
        self.show_row(conversation)

    def show_row(self, conversation: Json) -> None:
        """Show title and states of a conversation."""
        names = ("id", "title", "execution_status", "sandbox_status")
        fields = [(name, conversation.get(name)) for name in names]
        show_fields(self.console, [*fields, ("events stored", len(self.shown))])

    def delete_sandbox(self) -> None:
        """Request the deletion of the sandbox, if there is one."""
        if self.sandbox_id is None:
            return
        self.service.delete_sandbox(self.sandbox_id)
        self.console.print("\nThe sandbox is no longer listed; the worker is removing its container and files.")

    def show_afterwards(self, conversation_id: str) -> None:
        """Show the conversation and the number of its events, which outlive the sandbox."""
        show_heading(self.console, "What the service still has")
        self.shown = {event["id"] for event in self.service.events(conversation_id)}
        self.show_row(self.service.conversation(conversation_id))
