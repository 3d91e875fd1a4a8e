"""A user's program with the Python SDK, which prints its results as one JSON document in the last line."""

import json
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
from openhands.sdk import Conversation
from openhands.tools.preset.default import get_default_agent
from openhands.workspace import OpenHandsCloudWorkspace

URL, KEY = os.environ["URL"], os.environ["KEY"]
FOLDER = "/workspace/project"


def main() -> None:
    results: dict[str, Any] = {}
    with OpenHandsCloudWorkspace(cloud_api_url=URL, cloud_api_key=KEY, keep_alive=True) as workspace:
        results["sandbox_id"] = workspace._sandbox_id
        results["command"] = run(workspace, "echo out; echo err >&2; exit 3")
        results["files"] = transfer_files(workspace)
        results["settings"] = read_settings(workspace)
        results["conversation"] = converse(workspace)
    pause(results["sandbox_id"])
    with OpenHandsCloudWorkspace(cloud_api_url=URL, cloud_api_key=KEY, sandbox_id=results["sandbox_id"]) as workspace:
        results["resumed"] = run(workspace, "cat greeting.txt")
    results["afterwards"] = get(f"/api/v1/sandboxes?id={results['sandbox_id']}")
    print(json.dumps(results))


def run(workspace: OpenHandsCloudWorkspace, command: str) -> list[Any]:
    done = workspace.execute_command(command, cwd=FOLDER)
    return [done.exit_code, done.stdout, done.stderr]


def transfer_files(workspace: OpenHandsCloudWorkspace) -> list[Any]:
    with TemporaryDirectory() as directory:
        local, back = Path(directory, "local"), Path(directory, "back")
        local.write_bytes(b"\x00\xff\n")
        up = workspace.file_upload(local, f"{FOLDER}/remote")
        down = workspace.file_download(f"{FOLDER}/remote", back)
        return [up.success, down.success, list(back.read_bytes())]


def read_settings(workspace: OpenHandsCloudWorkspace) -> dict[str, Any]:
    llm, quick = workspace.get_llm(temperature=0.5), workspace.get_llm("quick")
    return {
        "llm": [llm.model, llm.api_key.get_secret_value(), llm.base_url, llm.temperature],
        "profile": [quick.model, quick.api_key.get_secret_value(), quick.base_url, quick.usage_id],
        "mcp": {name: server.model_dump(mode="json") for name, server in workspace.get_mcp_config().items()},
        "secrets": {name: secret.description for name, secret in workspace.get_secrets().items()},
    }


def converse(workspace: OpenHandsCloudWorkspace) -> list[Any]:
    agent = get_default_agent(llm=workspace.get_llm(), cli_mode=True)
    conversation = Conversation(agent=agent, workspace=workspace)
    conversation.update_secrets(workspace.get_secrets())
    conversation.send_message("Write a greeting.")
    conversation.run()
    kinds = [type(event).__name__ for event in conversation.state.events]
    greeting = run(workspace, "cat greeting.txt")
    outcome = [str(conversation.id), conversation.state.execution_status.value, kinds, greeting]
    conversation.close()
    return outcome


def pause(sandbox_id: str) -> None:
    """Pause the sandbox over HTTP: the SDK's own `pause` is not implemented yet."""
    httpx.post(f"{URL}/api/v1/sandboxes/{sandbox_id}/pause?wait=20", headers=headers(), timeout=30).raise_for_status()
    while get(f"/api/v1/sandboxes?id={sandbox_id}")[0]["status"] != "PAUSED":
        time.sleep(0.1)


def get(path: str) -> Any:
    return httpx.get(f"{URL}{path}", headers=headers()).json()


def headers() -> dict[str, str]:
    return {"Authorization": f"Bearer {KEY}"}


main()
