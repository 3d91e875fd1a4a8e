"""Every method of the TypeScript client's `CloudClient`, unchanged."""

import json
from typing import Any

import pytest

from tests.clients import guides
from tests.clients.site import PROGRAMS, Site
from tests.services.directories import REPOSITORY

CLIENT = "TypeScript client"
# Internal methods that the others call.
INNER = {"constructor", "profileBasePath", "buildUpstreamAuthHeaders", "requestDirect", "requestThroughProxy"}
# Methods of another service; V1 has no such routes.
NOT_OF_V1 = {
    "listAutomations",
    "getAutomation",
    "updateAutomation",
    "deleteAutomation",
    "dispatchAutomation",
    "listAutomationRuns",
    "downloadAutomationTarball",
    "getAutomationHealth",
}
# The statuses for a user without a git provider, whose agent has no models to switch between.
REJECTED = {
    "searchRepositories": 403,
    "getInstallations": 403,
    "getRepositoryBranches": 403,
    "getSuggestedTasks": 403,
    "switchConversationAcpModel": 400,
}
# The reproducible part of each method's result; `...` is any value.
RESULTS: dict[str, Any] = {
    "startDeviceFlow": {"interval": 5, "expires_in": 600},
    "pollForToken": {"token_type": "Bearer"},
    "getCurrentApiKey": {},
    "getOrganizations": {},
    "getOrganizationMe": {"role": "owner"},
    "saveSettings": None,
    "getSettings": {"language": "de", "llm_model": "openai/greeter", "max_iterations": 55},
    "getSettingsWithDerivedFields": {"llm_api_key_set": True, "search_api_key_set": False},
    "getSettingsSchema": {},
    "getConversationSettingsSchema": {},
    "saveProfile": {"name": "first"},
    "renameProfile": {"name": "second"},
    "activateProfile": {"name": "second", "llm_applied": True},
    "getProfile": {"name": "second", "api_key_set": True},
    "listProfiles": {"active_profile": "second"},
    "deleteProfile": {"name": "second"},
    "createSecret": None,
    "updateSecret": None,
    "listSecrets": [{"name": "DEPLOY_KEY"}, {"name": "TOKEN", "description": "another"}],
    "deleteSecret": None,
    "listSkills": ...,
    "searchModels": {},
    "searchProviders": {},
    "createConversation": {"status": "WORKING"},
    "getConversationStartTask": {"status": "READY"},
    "searchConversations": {"next_page_id": None},
    "getConversations": [{"execution_status": "finished", "title": "A greeting"}],
    "readConversationFile": '"hello, 23 letters\\n"',
    "switchConversationProfile": None,
    "updateConversationPublicFlag": {"public": True},
    "downloadConversation": ...,
    "getSandboxes": [{"status": "RUNNING"}],
    "request": 2,  # conversations: the guide's, and this one
    "pauseSandbox": None,
    "resumeSandbox": None,
    "deleteConversation": None,
}


@pytest.fixture(scope="module")
def guide_output(site: Site) -> str:
    """The output of the guide's example, which starts the sandbox for the other methods."""
    return site.node(guides.example(CLIENT, "js", site.url))


@pytest.fixture(scope="module")
def report(site: Site, guide_output: str) -> dict[str, Any]:
    """The results of all methods, as the program reports them."""
    program = (PROGRAMS / "typescript.mjs").read_text()
    report: dict[str, Any] = json.loads(site.node(program, guide_output.rsplit(maxsplit=1)[-1]).splitlines()[-1])
    return report


def test_guide_starts_a_conversation(site: Site, guide_output: str) -> None:
    status, conversation_id, sandbox_id = guide_output.split()
    assert status == "READY"
    assert site.alice.read("/api/v1/app-conversations", ids=conversation_id)[0]["sandbox_id"] == sandbox_id


def test_guide_has_the_tested_version() -> None:
    package = json.loads((REPOSITORY / "tests/images/clients/package.json").read_text())
    [(name, version)] = package["dependencies"].items()
    assert guides.installed(CLIENT) == f"{name}@{version}"


def test_every_method_is_known(report: dict[str, Any]) -> None:
    assert set(report["methods"]) == INNER | NOT_OF_V1 | set(REJECTED) | set(RESULTS)


@pytest.mark.parametrize("method", RESULTS)
def test_client_method_returns_its_result(report: dict[str, Any], method: str) -> None:
    outcome = report["results"][method]
    assert "value" in outcome, outcome
    assert matches(outcome["value"], RESULTS[method]), outcome["value"]


@pytest.mark.parametrize("method", REJECTED)
def test_client_method_is_rejected(report: dict[str, Any], method: str) -> None:
    assert report["results"][method].get("rejected") == REJECTED[method], report["results"][method]


def test_organization_profiles_are_listed(report: dict[str, Any]) -> None:
    assert report["results"]["listProfilesOfOrganization"]["value"]["profiles"] == []


def matches(found: Any, expected: Any) -> bool:
    """Whether the value has the expected content, and perhaps more fields."""
    if expected is ...:
        return found is not None
    if isinstance(expected, dict):
        return isinstance(found, dict) and all(matches(found.get(name), value) for name, value in expected.items())
    if isinstance(expected, list):
        return len(found) == len(expected) and all(matches(one, two) for one, two in zip(found, expected, strict=True))
    return bool(found == expected)
