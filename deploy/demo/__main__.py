"""`make demo`: run a conversation with a scripted model on a running service, live in the terminal."""

import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console

from deploy.demo.account import USER, temporary_key
from deploy.demo.client import DemoService
from deploy.demo.deadline import DemoDeadline
from deploy.demo.errors import DemoError
from deploy.demo.network import node_address, reachable
from deploy.demo.scripted_model import ScriptedModel
from deploy.demo.story import MODEL, SCRIPT, Story

app = typer.Typer(add_completion=False)

Url = Annotated[str, typer.Option(envvar="AW_URL", help="URL of the service.")]
Key = Annotated[
    str | None,
    typer.Option(
        envvar="AW_API_KEY",
        help="API key of the user to run as, whose model settings the demo replaces. "
        "Default: the demo creates its own user.",
        show_default=False,
        show_envvar=True,
    ),
]
Keep = Annotated[bool, typer.Option("--keep", help="Keep the sandbox running afterwards.")]
Seconds = Annotated[float, typer.Option(help="Timeout of the demo, in seconds.")]
ModelHost = Annotated[
    str | None,
    typer.Option(
        envvar="AW_DEMO_MODEL_HOST",
        help="Address of this machine that sandboxes can reach. Default: the node's in their network.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    url: str
    key: str | None
    keep: bool
    timeout: float
    model_host: str | None


@app.command()
def demo(
    *,
    url: Url = "http://127.0.0.1:3000",
    key: Key = None,
    keep: Keep = False,
    timeout: Seconds = 300,
    model_host: ModelHost = None,
) -> None:
    """Show one conversation from its start to its answer, with a scripted model."""
    console = Console()
    try:
        run(console, Options(url, key, keep, timeout, model_host))
    except DemoError as error:
        console.print(f"\nThe demo stopped: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None


def run(console: Console, options: Options) -> None:
    """Start the model, create the user and run the demo, then clean up in reverse order."""
    deadline = DemoDeadline(options.timeout)
    with DemoService(options.url, "") as anyone:
        anyone.check_alive()
    with ExitStack() as stack:
        model = stack.enter_context(scripted_model(options.model_host))
        stack.enter_context(reachable(model.url))
        key = options.key or stack.enter_context(temporary_key())
        service = stack.enter_context(DemoService(options.url, key))
        if options.key is not None:
            require_unused_settings(service)
        console.print(f"Service {service.url}, scripted model {model.url}; no provider, no provider's key.")
        show(Story(service, console, deadline), model, keep=options.keep)


def scripted_model(host: str | None) -> ScriptedModel:
    """The model on an address that sandboxes can reach, with an API key for this run."""
    address = host or node_address()
    try:
        return ScriptedModel({MODEL: SCRIPT}, address, api_key=secrets.token_urlsafe(16))
    except OSError as error:
        raise DemoError(f"cannot listen on {address} ({error.strerror}); set --model-host") from None


def require_unused_settings(service: DemoService) -> None:
    """Fail if the user has model settings other than the demo's."""
    stored = service.settings().get("llm_model")
    if stored not in {None, "", MODEL}:
        raise DemoError(f"this key's user has the model {stored}; run without --key to keep that setting")


def show(story: Story, model: ScriptedModel, *, keep: bool) -> None:
    """Run the demo, and delete the sandbox in the end, also after an error, unless it is to be kept."""
    try:
        conversation_id = story.play(model.base_url, model.api_key or "")
    except BaseException:
        if not keep:
            clean_up(story)
        raise
    if not keep:
        story.delete_sandbox()
        story.show_afterwards(conversation_id)
    show_next_command(story, conversation_id, keep=keep)


def clean_up(story: Story) -> None:
    """Delete the sandbox after an error, without hiding that error."""
    try:
        story.delete_sandbox()
    except DemoError as error:
        story.console.print(f"The sandbox {story.sandbox_id} may still exist: {error}", markup=False)


def show_next_command(story: Story, conversation_id: str, *, keep: bool) -> None:
    """Print how to read the conversation after the demo's key is revoked."""
    sandbox = f"\nThe sandbox {story.sandbox_id} keeps running until you delete it." if keep else ""
    address = f"{story.service.url}/api/v1/app-conversations?ids={conversation_id}"
    story.console.print(
        f"{sandbox}\nTo read the conversation later:\n"
        f"  KEY=$(.venv/bin/agent-workspace keys create {USER} --name demo)\n"
        f'  curl -H "Authorization: Bearer $KEY" "{address}"',
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    app(prog_name="make demo")
