"""A user's LLM configurations: the current one and the saved ones, and changes of the agent's settings.

Pure functions over plain documents.
"""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from shared.errors import Conflict, Invalid, NotFound
from shared.users.mcp_config import MASK, MAX_HEADERS, mask_url, secrets_of_url, unmask_url

MAX_PROFILES = 10
# The secret fields of an LLM configuration. The values of its extra headers are secrets too.
SECRET_FIELDS = frozenset({"api_key", "aws_access_key_id", "aws_secret_access_key", "aws_session_token"})
# The secret fields by section of the agent's settings. The LLM's key is stored beside them (`settings_v1`).
AGENT_SECRETS = {"llm": SECRET_FIELDS, "verification": frozenset({"critic_api_key"})}
# URLs may have credentials in them, such as a user and a password.
URL_FIELDS = frozenset({"base_url", "ollama_base_url", "aws_bedrock_runtime_endpoint", "critic_server_url"})
# The field of an LLM configuration that holds a document of the user's, in which empty values have a meaning.
DOCUMENT = "litellm_extra_body"

Llm = dict[str, Any]


class LlmProfiles(BaseModel):
    """Configurations by name, secrets in clear, and the name of the active one, if the current one is saved."""

    model_config = ConfigDict(hide_input_in_errors=True)

    profiles: dict[str, Llm] = Field(default_factory=dict)
    active: str | None = None

    def get(self, name: str) -> Llm:
        """The configuration with that name.

        Raises:
            NotFound: no configuration has that name.
        """
        if name not in self.profiles:
            raise NotFound("profile", name, by="name")
        return self.profiles[name]

    def save(self, name: str, llm: Llm) -> None:
        """Save a configuration under a name. An existing one is replaced.

        Raises:
            Conflict: the user has the maximum number of profiles already.
        """
        if name not in self.profiles and len(self.profiles) >= MAX_PROFILES:
            raise Conflict(f"a user can have at most {MAX_PROFILES} profiles: delete one first")
        self.profiles[name] = llm

    def rename(self, name: str, new_name: str) -> None:
        """Rename a configuration. Its position in the list stays.

        Raises:
            NotFound: no configuration has that name.
            Conflict: another configuration has the new name.
        """
        self.get(name)
        if new_name != name and new_name in self.profiles:
            raise Conflict(f"there is a profile named {new_name!r} already")
        self.profiles = {new_name if key == name else key: llm for key, llm in self.profiles.items()}
        self.active = new_name if self.active == name else self.active

    def follow(self, current: Llm) -> None:
        """Deactivate the active profile if its configuration differs from the current one.

        A profile without a key is active with any key.
        """
        saved = self.profiles.get(self.active or "")
        key = {"api_key": current["api_key"]} if "api_key" in current else {}
        if saved is None or key | saved != current:
            self.active = None


def have_same_server(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two configurations call the same LLM server: at the same URL or, without a URL, of the same provider.

    A configuration without a model calls none, so it differs from no other in that.
    """
    if one.get("base_url") or other.get("base_url"):
        return bool(one.get("base_url") == other.get("base_url"))
    return len({_provider(str(llm["model"])) for llm in (one, other) if llm.get("model")}) < 2


def _provider(model: str) -> str:
    """What tells a model's provider: the name before a slash or, without one, the first word, such as gpt or claude.

    The agent server chooses the provider of a model whose name has no slash.
    """
    return model.partition("/")[0] if "/" in model else re.split(r"[^A-Za-z]", model, maxsplit=1)[0].lower()


def secrets_of_llm(llm: Mapping[str, Any]) -> list[str]:
    """The configuration's secrets in clear."""
    values = [*(llm.get(name) for name in SECRET_FIELDS), *(llm.get("extra_headers") or {}).values()]
    urls = [llm.get(name) or "" for name in URL_FIELDS]
    return [value for value in values if value] + [secret for url in urls for secret in secrets_of_url(url)]


def mask_llm(llm: Mapping[str, Any]) -> Llm:
    """The configuration with masks in place of secrets."""
    shown = mask_urls(llm) | {name: MASK for name in SECRET_FIELDS if llm.get(name)}
    headers = llm.get("extra_headers")
    return shown | ({"extra_headers": dict.fromkeys(headers, MASK)} if headers else {})


def mask_urls(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration, which may come from a sandbox, with masks in place of the credentials in its URLs."""
    urls = {name: config[name] for name in URL_FIELDS if isinstance(config.get(name), str)}
    return dict(config) | {name: mask_url(url) for name, url in urls.items()}


def change_agent_settings(stored: Mapping[str, Any], diff: Mapping[str, Any]) -> dict[str, Any]:
    """The agent's settings after a change: as in `_merge`, but null keeps a secret, since a client may be shown null.

    Raises:
        Invalid: a mask has no stored value, or the LLM would have too many headers.
    """
    merged = _merge(stored, _without_nulls_of_secrets(stored, diff))
    before, after = (len(settings.get("llm", {}).get("extra_headers", ())) for settings in (stored, merged))
    if after > max(before, MAX_HEADERS):
        raise Invalid(f"llm.extra_headers: at most {MAX_HEADERS} headers, with those that are stored")
    return merged


def _without_nulls_of_secrets(stored: Mapping[str, Any], diff: Mapping[str, Any]) -> dict[str, Any]:
    changes = dict(diff)
    for section, secrets in AGENT_SECRETS.items():
        sent = changes.get(section, {})
        if sent is None:  # all fields of the section, except headers, whose values are secrets
            sent = dict.fromkeys(name for name in stored.get(section, {}) if name != "extra_headers")
        changes[section] = {name: value for name, value in sent.items() if value is not None or name not in secrets}
    return changes


def _merge(stored: Mapping[str, Any], diff: Mapping[str, Any]) -> dict[str, Any]:
    """Merge changes into a document: null and an empty text remove a field, a mask keeps it, objects are merged."""
    merged = dict(stored)
    for name, value in diff.items():
        if name == DOCUMENT and value is not None:
            merged[name] = _patch(merged.get(name), value)
        elif isinstance(value, Mapping):
            before = merged.get(name)
            merged[name] = _merge(before if isinstance(before, Mapping) else {}, value)
        elif value == MASK:
            if name not in merged:
                raise Invalid(f"the mask of {name!r} has no stored value")
        elif name in URL_FIELDS and isinstance(value, str) and value:  # a capability may have the same name
            merged[name] = unmask_url(value, merged.get(name))
        elif value in (None, ""):
            merged.pop(name, None)
        else:
            merged[name] = value
    return {name: value for name, value in merged.items() if value != {}}


def _patch(stored: Any, diff: Any) -> Any:
    """Apply a merge patch (RFC 7396): null removes a field, objects are merged, everything else is stored as it is."""
    if not isinstance(diff, Mapping):
        return diff
    before = stored if isinstance(stored, Mapping) else {}
    kept = {name: value for name, value in before.items() if name not in diff}
    return kept | {name: _patch(before.get(name), value) for name, value in diff.items() if value is not None}
