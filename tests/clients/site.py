"""The service with real sandboxes, and a container with the OpenHands clients."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.demo.scripted_model import Finish, RunCommand, Script, ScriptedModel
from deploy.door.network import find_network
from shared.settings import Settings
from tests.services.client import Client
from tests.services.deployment import Deployment, deployed
from tests.services.engine import SANDBOX_IMAGE, name_installation
from tests.services.machine_engine import machine_engine
from tests.services.second_machine import SecondMachine, running_second_machine
from tests.services.stores import SqliteStores
from tests.services.valkey import Valkey

IMAGE = "agent-workspace/clients:1"
MODEL_KEY = "model-key"
SECRET = "four-and-twenty-letters"
PROGRAMS = Path(__file__).parent / "programs"
# Longer than any test; then a container that outlives a killed test process ends by itself.
LIFE_SECONDS = "900"
DEADLINE_SECONDS = "240"
SCRIPT = Script(
    [
        # The value of a secret is masked in the agent's output, but its length is not.
        RunCommand('echo "hello, $(printf %s "$DEPLOY_KEY" | wc -c) letters" > greeting.txt; cat greeting.txt'),
        Finish("It is written."),
    ],
    title="A greeting",
)
SETTINGS = {
    "llm_model": "openai/greeter",
    "llm_api_key": MODEL_KEY,
    "secrets_store": {"custom_secrets": {"DEPLOY_KEY": {"secret": SECRET, "description": "for deploys"}}},
}


@dataclass(frozen=True)
class Site:
    """The service at an address that sandboxes reach too, and a user with settings."""

    service: Deployment
    url: str
    alice: Client
    model: ScriptedModel
    container: str

    def run(self, *command: str, program: str = "") -> str:
        """Run a command in the clients' container, with `program` as its standard input, and return its output.

        Its errors go to the standard error of the test, which is shown with a failure.

        Raises:
            AssertionError: the command failed.
        """
        command = ("timeout", DEADLINE_SECONDS, *command)
        done = subprocess.run(
            ["docker", "exec", "--interactive", *self._environment(), self.container, *command],
            input=program,
            capture_output=True,
            text=True,
            check=False,
        )
        sys.stderr.write(done.stderr)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def begin(self, *command: str) -> "subprocess.Popen[str]":
        """Start a command in the clients' container, with its output in a pipe."""
        arguments = ["docker", "exec", *self._environment(), self.container, *command]
        return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def node(self, program: str, *arguments: str) -> str:
        """Run a JavaScript module beside the installed clients, and return its output."""
        command = 'cd /opt/clients && exec node --input-type=module - "$@"'
        return self.run("bash", "-c", command, "bash", *arguments, program=program)

    def report(self, *command: str, program: str) -> Any:
        """Run a program of this test suite, and return the JSON document in its last line."""
        return json.loads(self.run(*command, program=(PROGRAMS / program).read_text()).splitlines()[-1])

    def _environment(self) -> list[str]:
        user = self.alice.user
        variables = {"URL": self.url, "KEY": user.key, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
        return [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]


@contextmanager
def running_site(stores: SqliteStores, broker: Valkey, *, elsewhere: bool) -> Iterator[Site]:
    """Run one API process and one worker with the machine's engine, and the clients' container.

    Args:
        elsewhere: the sandboxes are on a second machine, which has its own engine, worker and door. The clients use
            the same address of the service; for the sandboxes, it is the address of their own door.
    """
    installation = name_installation()
    with ExitStack() as stack:
        engine = stack.enter_context(machine_engine(installation))
        database_url = stack.enter_context(stores.fresh())
        machine = stack.enter_context(running_second_machine([SANDBOX_IMAGE])) if elsewhere else None
        host = machine.host if machine else engine.gateway
        model = stack.enter_context(ScriptedModel({"greeter": SCRIPT}, host, api_key=MODEL_KEY))
        service = stack.enter_context(
            deployed(engine, SANDBOX_IMAGE, database_url=database_url, broker_url=broker.url, installation=installation)
        )
        url = f"http://{engine.gateway}:{service.door_port}"
        if machine:
            machine.open_api(service)
        service.start()
        if machine:
            _join(machine, service, model)
        alice = stack.enter_context(service.user("alice"))
        assert alice.post("/api/settings", json=SETTINGS | {"llm_base_url": model.base_url}).is_success
        yield Site(service, url, alice, model, stack.enter_context(_clients()))
        if machine:
            machine.assert_used(service)


def _join(machine: SecondMachine, service: Deployment, model: ScriptedModel) -> None:
    """Join the second machine, with the same sandbox network as this machine: nodes may use the same addresses."""
    network = find_network(Settings(network_isolation=False)).addresses
    machine.join(service, sandboxes=str(network), model_server=model.url.removeprefix("http://"))


@contextmanager
def _clients() -> Iterator[str]:
    command = ["docker", "run", "--detach", "--rm", "--init", "--network", "host", IMAGE, "sleep", LIFE_SECONDS]
    container = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    try:
        yield container
    finally:
        subprocess.run(["docker", "rm", "--force", container], check=False, capture_output=True)
