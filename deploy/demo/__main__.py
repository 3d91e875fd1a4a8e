"""`make demo`: a conversation with a scripted model, live in the terminal, on a running service."""

import secrets
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console

from deploy.demo.account import USER, borrowed_key
from deploy.demo.client import Service
from deploy.demo.deadline import Deadline
from deploy.demo.errors import DemoError
from deploy.demo.network import bridge_address
from deploy.demo.scripted_model import ScriptedModel
from deploy.demo.story import MODEL, SCRIPT, Story

app = typer.Typer(add_completion=False)

Url = Annotated[str, typer.Option(envvar="AW_URL", help="Where the service listens.")]
Key = Annotated[
    str | None,
    typer.Option(
        envvar="AW_API_KEY",
        help="Run as the user of this key, whose model settings are then the demo's; "
        "without it the demo makes a user of its own.",
        show_default=False,
        show_envvar=True,
    ),
]
Keep = Annotated[bool, typer.Option("--keep", help="Leave the sandbox running afterwards.")]
Seconds = Annotated[float, typer.Option(help="Give up after this many seconds.")]
ModelHost = Annotated[
    str | None,
    typer.Option(
        envvar="AW_DEMO_MODEL_HOST",
        help="Address of this machine that sandboxes can reach; found from the Docker Engine by default.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Options:
    """What the command line asked for."""

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
    """Show one conversation from its start to its answer, with a model that follows a script."""
    console = Console()
    try:
        run(console, Options(url, key, keep, timeout, model_host))
    except DemoError as error:
        console.print(f"\nThe demo stopped: {error}", style="red", markup=False, soft_wrap=True)
        raise typer.Exit(1) from None


def run(console: Console, options: Options) -> None:
    """Bring up model, user and story, and take them down in reverse order."""
    deadline = Deadline(options.timeout)
    with Service(options.url, "") as anyone:
        anyone.check_alive()
    with ExitStack() as stack:
        model = stack.enter_context(scripted_model(options.model_host))
        key = options.key or stack.enter_context(borrowed_key())
        service = stack.enter_context(Service(options.url, key))
        if options.key is not None:
            refuse_to_overwrite(service)
        console.print(f"Service {service.url}, scripted model {model.url}; no provider, no provider's key.")
        tell(Story(service, console, deadline), model, keep=options.keep)


def scripted_model(host: str | None) -> ScriptedModel:
    """The model on an address that sandboxes can reach, behind a key of this run."""
    address = host or bridge_address()
    try:
        return ScriptedModel({MODEL: SCRIPT}, address, api_key=secrets.token_urlsafe(16))
    except OSError as error:
        raise DemoError(f"can't listen on {address} ({error.strerror}); try --model-host") from None


def refuse_to_overwrite(service: Service) -> None:
    """Stop before the model settings of a real user are replaced."""
    stored = service.settings().get("llm_model")
    if stored not in {None, "", MODEL}:
        raise DemoError(f"this key's user works with {stored}; run without --key to leave that alone")


def tell(story: Story, model: ScriptedModel, *, keep: bool) -> None:
    """Tell the story; however it ends, leave no sandbox behind unless asked to keep it."""
    try:
        conversation_id = story.tell(model.base_url, model.api_key or "")
    except BaseException:
        if not keep:
            clear_away(story)
        raise
    if not keep:
        story.delete_sandbox()
        story.show_afterwards(conversation_id)
    show_the_way(story, conversation_id, keep=keep)


def clear_away(story: Story) -> None:
    """Delete the sandbox of a story that failed, without hiding why it failed."""
    try:
        story.delete_sandbox()
    except DemoError as error:
        story.console.print(f"The sandbox {story.sandbox_id} may be left: {error}", markup=False)


def show_the_way(story: Story, conversation_id: str, *, keep: bool) -> None:
    """How to look at all this once the demonstration's key is revoked."""
    kept = f"\nThe sandbox {story.sandbox_id} keeps running until you delete it." if keep else ""
    address = f"{story.service.url}/api/v1/app-conversations?ids={conversation_id}"
    story.console.print(
        f"{kept}\nTo look again:\n"
        f"  KEY=$(.venv/bin/agent-workspace keys create {USER} --name look)\n"
        f'  curl -H "Authorization: Bearer $KEY" "{address}"',
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


if __name__ == "__main__":
    app(prog_name="make demo")
