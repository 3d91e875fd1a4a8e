"""Real parts: an engine of our own, a real broker, both databases, the service's processes, a scripted model."""

from collections.abc import Iterator

import pytest

from deploy.demo.scripted_model import Finish, RunCommand, Script, ScriptedModel
from tests.services.engine import SANDBOX_IMAGE, TINY_IMAGE
from tests.services.private_engine import PrivateEngine, running_private_engine
from tests.services.service import Client, Service, installed_service
from tests.services.valkey import Valkey

MODEL_KEY = "model-key-that-must-not-leak"
GREETING = "hello from the sandbox"
# Longer than any test that watches it.
RESTING = "sleep 300"
SCRIPTS = {
    "openai/rester": Script([RunCommand(RESTING, "rest for a while"), Finish("Rested.")]),
    "openai/greeter": Script(
        [
            RunCommand(f"echo '{GREETING}' > greeting.txt; cat greeting.txt", "write a greeting"),
            Finish("It is written."),
        ],
        title="A greeting",
    ),
}


@pytest.fixture(scope="session")
def engine_of_our_own() -> Iterator[PrivateEngine]:
    """The engine, with the real image and the tiny one."""
    with running_private_engine([SANDBOX_IMAGE, TINY_IMAGE]) as engine:
        yield engine


@pytest.fixture
def engine(engine_of_our_own: PrivateEngine) -> Iterator[PrivateEngine]:
    """The engine, running, and empty after the test."""
    yield engine_of_our_own
    engine_of_our_own.clear()


@pytest.fixture(scope="session")
def model(engine_of_our_own: PrivateEngine) -> Iterator[ScriptedModel]:
    """A model that sandboxes can reach."""
    with ScriptedModel(SCRIPTS, engine_of_our_own.gateway, api_key=MODEL_KEY) as model:
        yield model


@pytest.fixture
def installed(database_url: str, valkey: Valkey, engine: PrivateEngine) -> Iterator[Service]:
    """The service, not started yet."""
    with installed_service(database_url, valkey.url, engine) as service:
        yield service


@pytest.fixture
def service(installed: Service) -> Service:
    """The service, running, with the tiny image as its default."""
    installed.prepare(SANDBOX_IMAGE, TINY_IMAGE)
    installed.start_api()
    installed.start_worker()
    return installed


@pytest.fixture
def alice(service: Service) -> Iterator[Client]:
    """A user."""
    with service.user("alice") as client:
        yield client
