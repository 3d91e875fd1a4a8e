"""What a user of the Python SDK does, told as one JSON document in the last line."""

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
    told: dict[str, Any] = {}
    with OpenHandsCloudWorkspace(cloud_api_url=URL, cloud_api_key=KEY, keep_alive=True) as workspace:
        told["sandbox_id"] = workspace._sandbox_id
        told["command"] = run(workspace, "echo out; echo err >&2; exit 3")
        told["files"] = exchange_files(workspace)
        told["settings"] = read_settings(workspace)
        told["conversation"] = converse(workspace)
    pause(told["sandbox_id"])
    with OpenHandsCloudWorkspace(cloud_api_url=URL, cloud_api_key=KEY, sandbox_id=told["sandbox_id"]) as workspace:
        told["resumed"] = run(workspace, "cat greeting.txt")
    told["afterwards"] = get(f"/api/v1/sandboxes?id={told['sandbox_id']}")
    print(json.dumps(told))


def run(workspace: OpenHandsCloudWorkspace, command: str) -> list[Any]:
    done = workspace.execute_command(command, cwd=FOLDER)
    return [done.exit_code, done.stdout, done.stderr]


def exchange_files(workspace: OpenHandsCloudWorkspace) -> list[Any]:
    with TemporaryDirectory() as directory:
        here, back = Path(directory, "here"), Path(directory, "back")
        here.write_bytes(b"\x00\xff\n")
        up = workspace.file_upload(here, f"{FOLDER}/there")
        down = workspace.file_download(f"{FOLDER}/there", back)
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
    told = [str(conversation.id), conversation.state.execution_status.value, kinds, run(workspace, "cat greeting.txt")]
    conversation.close()
    return told


def pause(sandbox_id: str) -> None:
    """By the interface: the SDK's own `pause` says that it is not there yet."""
    httpx.post(f"{URL}/api/v1/sandboxes/{sandbox_id}/pause?wait=20", headers=headers(), timeout=30).raise_for_status()
    while get(f"/api/v1/sandboxes?id={sandbox_id}")[0]["status"] != "PAUSED":
        time.sleep(0.1)


def get(path: str) -> Any:
    return httpx.get(f"{URL}{path}", headers=headers()).json()


def headers() -> dict[str, str]:
    return {"Authorization": f"Bearer {KEY}"}


main()
