"""What a sandbox's agent server is told at its boot."""

import json
from dataclasses import replace

import pytest

from shared.database import Database
from tests.factories import VAULT, make_person, make_sandbox
from worker.parts import Parts
from worker.sandbox_server import SandboxServer


@pytest.mark.parametrize("pooled", [False, True])
def test_the_pages_that_may_ask_the_api_may_ask_it_too(parts: Parts, database: Database, pooled: bool) -> None:
    sandbox = make_sandbox(database, make_person(database, "anna"))
    if pooled:
        sandbox.owner_id, sandbox.boot_key = None, VAULT.encrypt("boot")
    settings = parts.shared.model_copy(
        update={"web_url": "https://aw.example", "cors_origins": "https://page.example/"}
    )
    config = json.loads(SandboxServer(replace(parts, shared=settings), sandbox).config())
    assert config["allow_cors_origins"] == ["https://aw.example", "https://page.example"]
