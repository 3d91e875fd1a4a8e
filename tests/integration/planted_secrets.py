"""Canaries: secrets of every kind, which a test plants and then searches for."""

import secrets
from dataclasses import dataclass, field

import httpx

# The API shows these to the owner of the sandbox or of the login.
SHOWN_TO_THEIR_OWNER = ("session key", "session key of the pool", "cookie")


def canary(kind: str) -> str:
    return f"canary-{kind}-{secrets.token_hex(8)}"


@dataclass
class Planted:
    """The secrets by kind. Some are known only after the service has generated them."""

    by_name: dict[str, str] = field(
        default_factory=lambda: {
            name: canary(name.replace(" ", "-"))
            for name in (
                *("model key", "search key", "custom secret", "secret of a start", "provider token"),
                *("MCP header", "MCP environment", "MCP address", "wrong API key", "key in a rejected request"),
            )
        }
    )
    responses: list[httpx.Response] = field(default_factory=list)

    def __getitem__(self, name: str) -> str:
        return self.by_name[name]

    def hidden_from_owners(self) -> dict[str, str]:
        return {name: value for name, value in self.by_name.items() if name not in SHOWN_TO_THEIR_OWNER}
