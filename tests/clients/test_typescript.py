"""Every method of the TypeScript client's `CloudClient`, unchanged."""

import json
from typing import Any

import pytest

from tests.clients import guides
from tests.clients.site import PROGRAMS, Site
from tests.services.directories import REPOSITORY

CLIENT = "TypeScript client"
# What the others are made of.
INNER = {"constructor", "profileBasePath", "buildUpstreamAuthHeaders", "requestDirect", "requestThroughProxy"}
# Another service's; V1 has no such routes.
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
# What is refused to somebody who has no git provider connected, and whose agent has no models to switch between.
REFUSED = {
    "searchRepositories": 403,
    "getInstallations": 403,
    "getRepositoryBranches": 403,
    "getSuggestedTasks": 403,
    "switchConversationAcpModel": 400,
}
# What each method gives, as far as it is the same each time; `...`: anything.
TOLD: dict[str, Any] = {
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
def guide_said(site: Site) -> str:
    """What the guide's example says, which starts the sandbox that the rest goes on with."""
    return site.node(guides.example(CLIENT, "js", site.url))


@pytest.fixture(scope="module")
def report(site: Site, guide_said: str) -> dict[str, Any]:
    """What the program tells of all methods."""
    program = (PROGRAMS / "typescript.mjs").read_text()
    report: dict[str, Any] = json.loads(site.node(program, guide_said.rsplit(maxsplit=1)[-1]).splitlines()[-1])
    return report


def test_guide(site: Site, guide_said: str) -> None:
    status, conversation_id, sandbox_id = guide_said.split()
    assert status == "READY"
    assert site.alice.read("/api/v1/app-conversations", ids=conversation_id)[0]["sandbox_id"] == sandbox_id


def test_guide_names_the_version_that_is_tested() -> None:
    package = json.loads((REPOSITORY / "tests/images/clients/package.json").read_text())
    [(name, version)] = package["dependencies"].items()
    assert guides.installed(CLIENT) == f"{name}@{version}"


def test_every_method_is_known(report: dict[str, Any]) -> None:
    assert set(report["methods"]) == INNER | NOT_OF_V1 | set(REFUSED) | set(TOLD)


@pytest.mark.parametrize("method", TOLD)
def test_method(report: dict[str, Any], method: str) -> None:
    outcome = report["told"][method]
    assert "gave" in outcome, outcome
    assert is_told(outcome["gave"], TOLD[method]), outcome["gave"]


@pytest.mark.parametrize("method", REFUSED)
def test_what_is_refused(report: dict[str, Any], method: str) -> None:
    assert report["told"][method].get("refused") == REFUSED[method], report["told"][method]


def test_profiles_of_the_organization(report: dict[str, Any]) -> None:
    assert report["told"]["listProfilesOfOrganization"]["gave"]["profiles"] == []


def is_told(given: Any, expected: Any) -> bool:
    """Whether it is what was expected, and perhaps more."""
    if expected is ...:
        return given is not None
    if isinstance(expected, dict):
        return isinstance(given, dict) and all(is_told(given.get(name), value) for name, value in expected.items())
    if isinstance(expected, list):
        return len(given) == len(expected) and all(is_told(one, two) for one, two in zip(given, expected, strict=True))
    return bool(given == expected)
