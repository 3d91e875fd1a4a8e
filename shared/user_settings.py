"""A user's settings in clear, and what of them is shown in place of a secret."""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from shared.errors import Invalid

# Shown in place of a secret; sent back, it stands for the stored one and is never stored itself.
MASK = "**********"

McpConfig = dict[str, Any]
Server = dict[str, Any]

# What in a URL may be a credential: all before the @, and the parameters with such names.
USER_INFO = re.compile(r"(?<=//)[^/?#]*(?=@)")
SECRET_PARAMETER = re.compile(
    r"([?&#;][^=&#;]*(?:auth|code|cred|jwt|key|pass|secret|session|sig|token)[^=&#;]*=)[^&#;]*", re.IGNORECASE
)


class Provider(StrEnum):
    """The git providers (wire contract 1.9)."""

    GITHUB = "github"
    GITLAB = "gitlab"
    BITBUCKET = "bitbucket"
    BITBUCKET_DATA_CENTER = "bitbucket_data_center"
    FORGEJO = "forgejo"
    AZURE_DEVOPS = "azure_devops"
    ENTERPRISE_SSO = "enterprise_sso"


class OpenSettings(BaseModel):
    """The settings that are no secrets, with their defaults (interface.md 2.1).

    Bounds are checked where settings come in, not here: what is stored can always be read.
    """

    model_config = ConfigDict(frozen=True, hide_input_in_errors=True)

    language: str | None = None
    agent: str | None = None
    max_iterations: int | None = None
    security_analyzer: str | None = None
    confirmation_mode: bool | None = None
    llm_model: str | None = None
    llm_base_url: str | None = None
    remote_runtime_resource_factor: int | None = None
    enable_default_condenser: bool = True
    # In events; V0 has it, the interface's table has not.
    condenser_max_size: int | None = None
    enable_sound_notifications: bool = False
    enable_proactive_conversation_starters: bool = True
    enable_solvability_analysis: bool = True
    user_consents_to_analytics: bool | None = None
    sandbox_base_container_image: str | None = None
    sandbox_runtime_container_image: str | None = None
    # In US dollars.
    max_budget_per_task: float | None = None
    email: str | None = None
    email_verified: bool | None = None
    git_user_name: str | None = None
    git_user_email: str | None = None


class StoredSettings(OpenSettings):
    """Every setting in clear, for the worker; a repr or a log line of it shows no secret."""

    llm_api_key: str | None = Field(default=None, repr=False)
    search_api_key: str | None = Field(default=None, repr=False)
    sandbox_api_key: str | None = Field(default=None, repr=False)
    # {sse_servers, stdio_servers, shttp_servers}, as section 2.2 of the interface has it.
    mcp_config: McpConfig | None = Field(default=None, repr=False)


def mask_servers(config: Mapping[str, Any]) -> McpConfig:
    """The MCP servers without keys, environment values and the credentials in URLs."""
    return {
        "sse_servers": [_mask_remote(server) for server in _listed(config, "sse_servers")],
        "stdio_servers": [_mask_process(server) for server in _listed(config, "stdio_servers")],
        "shttp_servers": [_mask_remote(server) for server in _listed(config, "shttp_servers")],
    }


def unmask_servers(config: Mapping[str, Any], stored: Mapping[str, Any] | None) -> McpConfig:
    """The MCP servers with what is stored wherever they hold the mask: found by URL, or by name.

    Raises:
        Invalid: nothing is stored that a mask could stand for.
    """
    sse, shttp = _by_url(stored, "sse_servers"), _by_url(stored, "shttp_servers")
    processes = {server["name"]: server for server in _listed(stored, "stdio_servers")}
    return {
        # A server may have moved from one list to the other.
        "sse_servers": [_unmask_remote(server, shttp | sse) for server in _listed(config, "sse_servers")],
        "stdio_servers": [_unmask_process(server, processes) for server in _listed(config, "stdio_servers")],
        "shttp_servers": [_unmask_remote(server, sse | shttp) for server in _listed(config, "shttp_servers")],
    }


def mask_url(url: str) -> str:
    """The URL without what looks like a credential in it."""
    return SECRET_PARAMETER.sub(rf"\g<1>{MASK}", USER_INFO.sub(MASK, url))


def _listed(config: Mapping[str, Any] | None, name: str) -> Sequence[Server]:
    return (config or {}).get(name) or ()


def _by_url(config: Mapping[str, Any] | None, name: str) -> dict[str, Server]:
    return {mask_url(server["url"]): server for server in _listed(config, name)}


def _mask_remote(server: Server) -> Server:
    return server | {"url": mask_url(server["url"]), "api_key": MASK if server.get("api_key") else None}


def _mask_process(server: Server) -> Server:
    return server | {"env": dict.fromkeys(server.get("env") or {}, MASK)}


def _unmask_remote(server: Server, stored: Mapping[str, Server]) -> Server:
    url, key = server["url"], server.get("api_key")
    before = stored.get(mask_url(url), {})
    if MASK in url and url == mask_url(url):
        url = before.get("url", url)
    if key == MASK:
        key = before.get("api_key", key)
    if MASK in url or key == MASK:
        raise Invalid("mcp_config: no server with that URL is stored whose secret the mask could stand for")
    return server | {"url": url, "api_key": key or None}


def _unmask_process(server: Server, stored: Mapping[str, Server]) -> Server:
    before = stored.get(server["name"], {}).get("env") or {}
    env = server.get("env") or {}
    if any(value == MASK and name not in before for name, value in env.items()):
        raise Invalid(f"mcp_config: {server['name']!r} has no stored variable that the mask could stand for")
    return server | {"env": {name: before[name] if value == MASK else value for name, value in env.items()}}
