"""Models that forms suggest. Settings accept any other name, too."""

from typing import NamedTuple


class Suggested(NamedTuple):
    """A model under LiteLLM's names of provider and model."""

    provider: str
    name: str


_BY_PROVIDER = {
    "anthropic": (
        "claude-opus-4-8",
        "claude-opus-4-7",
        "claude-opus-4-6",
        "claude-opus-4-5",
        "claude-sonnet-4-6",
        "claude-sonnet-4-5",
        "claude-haiku-4-5-20251001",
        "claude-fable-5",
    ),
    "deepseek": (
        "deepseek-chat",
        "deepseek-v3.2-reasoner",
        "deepseek-v4-pro",
    ),
    "gemini": (
        "gemini-3-flash",
        "gemini-3-pro",
        "gemini-3.1-pro",
        "gemini-3.1-pro-preview",
    ),
    "minimax": (
        "minimax-m2.5",
        "minimax-m2.7",
        "minimax-m3",
    ),
    "mistral": (
        "devstral-2512",
        "devstral-medium-2512",
        "devstral-small-2507",
    ),
    "moonshot": (
        "kimi-k2-thinking",
        "kimi-k2.5",
        "kimi-k2.6",
    ),
    "openai": (
        "gpt-5.5",
        "gpt-5.4",
        "gpt-5.2",
        "gpt-5.2-codex",
        "gpt-5.1",
        "gpt-5.1-codex",
        "gpt-5.1-codex-max",
        "gpt-5.1-codex-mini",
        "gpt-4.1",
        "gpt-4o",
        "gpt-4o-mini",
        "o3",
        "o4-mini",
    ),
}
SUGGESTED = sorted(Suggested(provider, name) for provider, names in _BY_PROVIDER.items() for name in names)
