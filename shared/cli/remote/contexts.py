"""Contexts: the services that this machine's user is logged in to, in a file that only that user can read."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer

from shared.cli.output import NAME
from shared.errors import Invalid, NotFound, Unauthenticated
from shared.private_files import replace_file

OTHERS = 0o077


@dataclass(frozen=True)
class ServiceContext:
    """A service and the key with which to use it.

    Args:
        is_own: the key was issued for this machine; one that was given to `login` may be in use elsewhere.
    """

    url: str
    key: str
    is_own: bool = True


@dataclass(frozen=True)
class Contexts:
    """All contexts by name, and the name of the one in use."""

    by_name: dict[str, ServiceContext]
    current: str | None = None

    def get(self, name: str | None) -> ServiceContext:
        """The context of that name, or the one in use.

        Raises:
            NotFound: there is no such context.
            Unauthenticated: none is in use.
        """
        chosen = name or self.current
        if chosen is None:
            raise Unauthenticated(
                f"not logged in: run `{NAME} login URL`, or set AGENT_WORKSPACE_URL and AGENT_WORKSPACE_KEY"
            )
        if chosen not in self.by_name:
            raise NotFound("context", chosen, by="name")
        return self.by_name[chosen]

    def use(self, name: str) -> "Contexts":
        """These contexts with that one in use.

        Raises:
            NotFound: there is no such context.
        """
        self.get(name)
        return replace(self, current=name)

    def put(self, name: str, context: ServiceContext) -> "Contexts":
        """These contexts with that one added, and in use."""
        return Contexts(self.by_name | {name: context}, name)

    def remove(self, name: str) -> "Contexts":
        """These contexts without that one.

        Raises:
            NotFound: there is no such context.
        """
        self.get(name)
        rest = {other: context for other, context in self.by_name.items() if other != name}
        return Contexts(rest, None if self.current == name else self.current)


def file_path() -> Path:
    """The file of the contexts: `$XDG_CONFIG_HOME/agent-workspace/contexts.json`."""
    return Path(typer.get_app_dir(NAME)) / "contexts.json"


def load() -> Contexts:
    """Read the contexts; none if there is no file.

    Raises:
        Invalid: other users can read the file, or it is malformed.
    """
    path = file_path()
    if not path.exists():
        return Contexts({})
    if path.stat().st_mode & OTHERS:
        raise Invalid(f"{path} has keys, and other users can read it: run `chmod 600 {path}`")
    try:
        document = json.loads(path.read_text())
        found = {str(name): _read(one) for name, one in document["contexts"].items()}
        return Contexts(found, document["current"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Invalid(f"{path} is malformed: remove it, and log in again") from None


def save(contexts: Contexts) -> None:
    """Write the contexts; the file's mode is 0600."""
    path = file_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    written: dict[str, Any] = {name: vars(context) for name, context in contexts.by_name.items()}
    replace_file(path, json.dumps({"current": contexts.current, "contexts": written}, indent=2))


def check_url(url: str) -> str:
    """A service's URL without a trailing slash.

    Raises:
        Invalid: it is not an http or https URL.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment or parts.username:
        raise Invalid(f"{url!r} is not the URL of a service: use one such as https://agents.example.org")
    return url.rstrip("/")


def _read(one: dict[str, Any]) -> ServiceContext:
    return ServiceContext(str(one["url"]), str(one["key"]), bool(one.get("is_own", True)))
