"""The start of a conversation in a warm sandbox, from POST to READY, compared with the agent server's own create."""

import time

import httpx

from deploy.demo.network import bridge_address
from deploy.demo.scripted_model import Finish, Script, ScriptedModel
from shared.ids import new_id
from shared.users.settings import StoredSettings
from tests.bench.figures import Figure, Runs
from tests.bench.site import Site
from tests.bench.starts import KEY, WEBHOOK, await_healthy, bare_container, delete
from tests.factories import NODE_ID
from worker.conversations.agent_request import AgentInputs, build_request
from worker.sandboxes.container_spec import server_config

MODEL = "openai/quick"
MODEL_KEY = "sk-bench"
LONG = 60
MESSAGE = {"role": "user", "content": [{"type": "text", "text": "Hello"}]}


def conversations(site: Site, image: str, name: str, runs: int, samples: int) -> Figure:
    """Measure both in alternation. Each conversation is its server's first, for which the server loads modules."""
    site.set_pool(image, 2)
    ours: Runs = []
    bare: Runs = []
    with ScriptedModel(
        {MODEL: Script([Finish("done")], title="A title")}, bridge_address(), api_key=MODEL_KEY
    ) as model:
        _configure(site, model)
        for _ in range(runs):
            ours.append([])
            bare.append([])
            for _ in range(samples):
                ours[-1].append(_start(site, image))
                bare[-1].append(_create(site, image, model))
    site.set_pool(image, 0)
    site.await_pool(image, 0)
    return Figure(
        f"conversation on a warm sandbox, {name}",
        ours,
        "agent server's own create",
        bare,
        "p50 ≤ 600 ms; ≤ 1.5 × bare",
        lambda one: one.over_all(0.5) <= 0.6 and one.ratio <= 1.5,
    )


def _configure(site: Site, model: ScriptedModel) -> None:
    settings = {"llm_model": MODEL, "llm_base_url": model.base_url, "llm_api_key": MODEL_KEY}
    site.client.post("/api/settings", json=settings).raise_for_status()


def _start(site: Site, image: str) -> float:
    site.await_pool(image, 2)
    began = time.perf_counter()
    response = site.client.post("/api/v1/app-conversations", json={"initial_message": MESSAGE}, params={"wait": LONG})
    seconds = time.perf_counter() - began
    shown = response.json()
    assert shown["status"] == "READY", response.text
    delete(site, str(shown["sandbox_id"]))
    return seconds


def _create(site: Site, image: str, model: ScriptedModel) -> float:
    inputs = AgentInputs(
        conversation_id=new_id(),
        working_dir="/workspace/project",
        settings=StoredSettings(llm_model=MODEL, llm_base_url=model.base_url, llm_api_key=MODEL_KEY),
        initial_message=MESSAGE,
    )
    with bare_container(site, image) as container, httpx.Client(trust_env=False, timeout=LONG) as http:
        url = container.boot(server_config(KEY, node_id=NODE_ID, webhook_url=WEBHOOK, origins=[]))
        await_healthy(http, url, KEY)
        site.await_pool(image, 2)
        began = time.perf_counter()
        response = http.post(f"{url}/api/conversations", json=build_request(inputs), headers={"X-Session-API-Key": KEY})
        response.raise_for_status()
        return time.perf_counter() - began
