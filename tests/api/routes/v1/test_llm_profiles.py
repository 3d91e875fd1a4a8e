"""Saved LLM configurations, below the settings and below an organization."""

from typing import Any

import pytest
from fastapi.testclient import TestClient

from shared.db.database import Database
from shared.users import settings_store
from shared.users.settings import StoredSettings
from tests.api.routes.v1.settings.stored import raw_store
from tests.contract.recordings import recording
from tests.factories import VAULT, ApiUser

MASK = "**********"
FAST = {"model": "openai/gpt-4o-mini", "api_key": "fast-plain"}
DEEP = {"model": "openai/o3", "api_key": "deep-plain", "base_url": "https://llm.example.com", "temperature": 0.5}


class Profiles:
    """The profile routes for one user."""

    def __init__(self, client: TestClient, user: ApiUser, family: str = "/api/v1/settings/profiles") -> None:
        self.client, self.user, self.family = client, user, family

    def send(self, method: str, path: str = "", body: Any = None) -> Any:
        return self.client.request(method, self.family + path, json=body, headers=self.user.headers)

    def save(self, name: str, llm: dict[str, Any] | None = None, **more: Any) -> None:
        response = self.send("POST", f"/{name}", more if llm is None else {"llm": llm} | more)
        assert (response.status_code, response.json()["name"]) == (201, name), response.text

    def activate(self, name: str) -> Any:
        response = self.send("POST", f"/{name}/activate", {})
        assert response.status_code == 200, response.text
        return response.json()

    def listed(self) -> tuple[list[str], str | None]:
        found = self.send("GET").json()
        return [profile["name"] for profile in found["profiles"]], found["active_profile"]


@pytest.fixture
def profiles(client: TestClient, user: ApiUser) -> Profiles:
    return Profiles(client, user)


def load(database: Database, user: ApiUser) -> StoredSettings:
    with database.reading() as session:
        stored = settings_store.load(session, VAULT, user.id)
    assert stored is not None
    return stored


def in_force(database: Database, user: ApiUser) -> dict[str, Any]:
    stored = load(database, user)
    llm = {"model": stored.llm_model, "api_key": stored.llm_api_key, "base_url": stored.llm_base_url}
    rest: dict[str, Any] = stored.agent_settings.get("llm", {})
    return {name: value for name, value in llm.items() if value} | rest


def change(client: TestClient, user: ApiUser, body: Any) -> None:
    assert client.post("/api/v1/settings", json=body, headers=user.headers).status_code == 200


def test_list_is_empty_at_first(profiles: Profiles) -> None:
    assert profiles.send("GET").json() == {"profiles": [], "active_profile": None}
    for method, path, body in (
        ("GET", "/fast", None),
        ("POST", "/fast/activate", {}),
        ("POST", "/fast/rename", {"new_name": "x"}),
    ):
        assert profiles.send(method, path, body).status_code == 404


def test_saved_profile_is_listed_without_its_key(profiles: Profiles) -> None:
    profiles.save("fast", FAST)
    profiles.save("deep", DEEP | {"aws_session_token": "aws-plain"})
    assert profiles.send("GET").json() == {
        "profiles": [
            {"name": "fast", "model": FAST["model"], "base_url": None, "api_key_set": True},
            {"name": "deep", "model": DEEP["model"], "base_url": DEEP["base_url"], "api_key_set": True},
        ],
        "active_profile": None,
    }
    assert profiles.send("GET", "/deep").json() == {
        "name": "deep",
        "config": DEEP | {"api_key": None, "aws_session_token": MASK},
        "api_key_set": True,
    }


def test_save_without_a_configuration_saves_the_current_one(
    client: TestClient, database: Database, user: ApiUser, profiles: Profiles
) -> None:
    change(client, user, {"llm_model": "m", "llm_api_key": "plain", "agent_settings_diff": {"llm": {"seed": 4}}})
    assert profiles.send("POST", "/now").status_code == 201
    assert load(database, user).llm_profiles.profiles == {"now": {"model": "m", "api_key": "plain", "seed": 4}}


def test_activation_applies_every_value_of_a_profile(
    client: TestClient, database: Database, user: ApiUser, profiles: Profiles
) -> None:
    profiles.save("fast", FAST)
    profiles.save("deep", DEEP)
    assert profiles.activate("deep") == {
        "name": "deep",
        "message": "Profile 'deep' activated",
        "model": DEEP["model"],
    }
    assert in_force(database, user) == DEEP
    profiles.activate("fast")
    assert in_force(database, user) == FAST  # no value of the other profile is left
    shown = client.get("/api/v1/settings", headers=user.headers)
    assert (shown.json()["llm_model"], shown.json()["llm_profiles"]["active"]) == (FAST["model"], "fast")
    assert shown.json()["llm_profiles"]["profiles"]["deep"] == DEEP | {"api_key": MASK}
    assert "plain" not in shown.text


@pytest.mark.parametrize(
    "body", [{"llm_model": "other"}, {"llm_api_key": "other"}, {"agent_settings_diff": {"llm": {"seed": 1}}}]
)
def test_change_of_the_llm_leaves_no_profile_active(
    client: TestClient, user: ApiUser, profiles: Profiles, body: Any
) -> None:
    profiles.save("fast", FAST)
    profiles.activate("fast")
    change(client, user, {"language": "en", "llm_model": FAST["model"]})
    assert profiles.listed() == (["fast"], "fast")
    change(client, user, body)
    assert profiles.listed() == (["fast"], None)


def test_overwritten_profile_is_not_active(database: Database, user: ApiUser, profiles: Profiles) -> None:
    profiles.save("fast", FAST)
    profiles.activate("fast")
    profiles.save("fast", FAST)
    assert profiles.listed() == (["fast"], "fast")
    profiles.save("fast", DEEP)
    assert profiles.listed() == (["fast"], None)
    assert in_force(database, user) == FAST


@pytest.mark.parametrize("key", [{}, {"api_key": None}, {"api_key": MASK}])
def test_key_that_is_not_sent_is_kept(
    database: Database, user: ApiUser, profiles: Profiles, key: dict[str, Any]
) -> None:
    profiles.save("deep", DEEP)
    profiles.save("deep", {"model": "new", **key})
    assert load(database, user).llm_profiles.profiles["deep"] == {"model": "new", "api_key": DEEP["api_key"]}


def test_key_can_be_cleared_left_out_or_preserved(database: Database, user: ApiUser, profiles: Profiles) -> None:
    profiles.save("deep", DEEP)
    profiles.save("deep", FAST, preserve_existing_api_key=True)
    assert load(database, user).llm_profiles.profiles["deep"] == FAST | {"api_key": DEEP["api_key"]}
    profiles.save("deep", FAST, include_secrets=False)
    assert load(database, user).llm_profiles.profiles["deep"] == {"model": FAST["model"]}
    profiles.save("deep", FAST)
    profiles.save("deep", FAST | {"api_key": ""})
    assert load(database, user).llm_profiles.profiles["deep"] == {"model": FAST["model"]}


def test_deletion_is_idempotent_and_activates_the_first_remaining_profile(
    database: Database, user: ApiUser, profiles: Profiles
) -> None:
    for name, llm in (("deep", DEEP), ("fast", FAST), ("third", FAST)):
        profiles.save(name, llm)
    profiles.activate("fast")
    for _ in range(2):
        response = profiles.send("DELETE", "/fast")
        assert (response.status_code, response.json()["name"]) == (200, "fast")
        assert profiles.listed() == (["deep", "third"], "deep")
    assert in_force(database, user) == DEEP
    profiles.send("DELETE", "/third")
    assert profiles.listed() == (["deep"], "deep")
    profiles.send("DELETE", "/deep")
    assert profiles.listed() == ([], None)
    assert in_force(database, user) == DEEP


def test_renamed_profile_keeps_its_position_and_stays_active(profiles: Profiles) -> None:
    for name, llm in (("deep", DEEP), ("fast", FAST)):
        profiles.save(name, llm)
    profiles.activate("deep")
    response = profiles.send("POST", "/deep/rename", {"new_name": "deeper"})
    assert (response.status_code, response.json()["name"]) == (200, "deeper")
    assert profiles.listed() == (["deeper", "fast"], "deeper")
    assert profiles.send("POST", "/deeper/rename", {"new_name": "fast"}).status_code == 409
    assert profiles.send("POST", "/deeper/rename", {"new_name": "deeper"}).status_code == 200
    assert profiles.send("POST", "/deep/rename", {"new_name": "x"}).status_code == 404


@pytest.mark.parametrize(("titles_by", "expected"), [("deep", "deeper"), ("fast", "fast"), (None, None)])
def test_renamed_profile_still_writes_titles(
    client: TestClient, user: ApiUser, profiles: Profiles, titles_by: str | None, expected: str | None
) -> None:
    for name, llm in (("deep", DEEP), ("fast", FAST)):
        profiles.save(name, llm)
    settings = {"title_llm_profile": titles_by}
    assert client.post("/api/v1/settings", json=settings, headers=user.headers).status_code == 200
    assert profiles.send("POST", "/deep/rename", {"new_name": "deeper"}).status_code == 200
    shown = client.get("/api/v1/settings", headers=user.headers).json()
    assert shown["title_llm_profile"] == expected


def test_eleventh_profile_is_a_409(profiles: Profiles) -> None:
    for number in range(10):
        profiles.save(f"p{number}", FAST)
    response = profiles.send("POST", "/p10", {"llm": FAST})
    assert (response.status_code, "10" in response.json()["detail"]) == (409, True)
    profiles.save("p9", DEEP)


def test_fields_of_newer_clients_are_accepted(profiles: Profiles) -> None:
    nulls = {"auth_type": "api_key", "subscription_vendor": None, "provider_connection_id": None}
    profiles.save("canvas", FAST | {"base_url": None} | nulls)
    profiles.save("sdk", FAST | {"usage_id": "default-llm", "log_completions": False, "stream": True})
    profiles.save("dumped", FAST | {"is_subscription": False})
    assert profiles.listed() == (["canvas", "sdk", "dumped"], None)
    for name in ("canvas", "dumped", "sdk"):
        config = profiles.send("GET", f"/{name}").json()["config"]
        assert (config["model"], "is_subscription" in config) == (FAST["model"], False)


def test_llm_is_saved_as_the_agent_sdk_writes_it(database: Database, user: ApiUser, profiles: Profiles) -> None:
    [written, *_] = (one["agent"]["llm"] for one in recording.read("failed").descriptions)
    chosen = {"api_mode": "responses", "capability_overrides": {"supports_vision": False}, "reasoning_effort": "max"}
    without = chosen | {"capability_overrides": {"supports_vision": False, "thinking_mode": None}}
    for name, llm in (("written", written), ("chosen", FAST | without)):
        profiles.save(name, llm)
    stored = load(database, user).llm_profiles.profiles
    assert (stored["written"]["api_mode"], stored["written"]["stream_idle_timeout"]) == ("auto", 300.0)
    assert stored["chosen"] == FAST | chosen
    profiles.activate("chosen")
    assert in_force(database, user) == FAST | chosen


BAD: list[tuple[str, Any]] = [
    ("a" * 65, {}),
    ("a b", {}),
    ("ok", {"llm": {"custom_header": "plain"}}),
    ("ok", {"llm": {"model": 1}}),
    ("ok", {"llm": {"api_mode": "telepathy"}}),
    ("ok", {"llm": {"is_subscription": True}}),
    ("ok", {"llm": {"api_key": "plain\nx"}}),
    ("ok", {"llm": []}),
    ("ok", {"include_secrets": "yes"}),
    ("ok", []),
]


def test_invalid_requests_are_refused(profiles: Profiles) -> None:
    for name, body in BAD:
        response = profiles.send("POST", f"/{name}", body)
        assert (response.status_code, "plain" in response.text) == (422, False), (name, body)
    masked = profiles.send("POST", "/ok", {"llm": {"api_key": MASK}})
    assert (masked.status_code, "mask" in masked.json()["detail"]) == (400, True)
    for name in ("a/b", ".", ".."):
        assert profiles.send("POST", "/ok/rename", {"new_name": name}).status_code == 422
    assert profiles.listed() == ([], None)


def test_organization_has_the_profiles_of_its_owner(client: TestClient, user: ApiUser, other_user: ApiUser) -> None:
    own = Profiles(client, user)
    below = Profiles(client, user, f"/api/organizations/{user.id}/profiles")
    below.save("fast", FAST)
    below.activate("fast")
    assert own.listed() == below.listed() == (["fast"], "fast")
    assert below.send("POST", "/fast/rename", {"new_name": "quick"}).status_code == 200
    assert below.send("GET", "/quick").json()["config"]["model"] == FAST["model"]
    stranger = Profiles(client, other_user, below.family)
    for method, path, body in (("POST", "/x", {"llm": FAST}), ("DELETE", "/quick", None)):
        stranger.send(method, path, body)
        assert (stranger.listed()[0], own.listed()[0]) == (["x"], ["quick"])
        assert client.request(method, below.family + path, json=body).status_code == 401
    assert below.send("DELETE", "/quick").status_code == 200
    assert own.listed() == ([], None)


def test_profiles_are_per_user(client: TestClient, other_user: ApiUser, profiles: Profiles) -> None:
    profiles.save("fast", FAST)
    theirs = Profiles(client, other_user)
    assert theirs.listed() == ([], None)
    assert theirs.send("GET", "/fast").status_code == 404


def test_secrets_are_not_stored_in_plain_text(database: Database, profiles: Profiles) -> None:
    profiles.save("deep", DEEP | {"extra_headers": {"X-Key": "header-plain"}})
    assert "plain" not in raw_store(database)
