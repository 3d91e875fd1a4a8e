"""git in a sandbox logs in with its owner's tokens: a credential helper asks the service, and keeps none of them.

What the helper keeps is the sandbox's own session key, in a file that only the sandbox's user can read. It opens what
is in the sandbox anyway, and its owner's secrets, while the sandbox runs (decision 2).
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from shared.users.secrets import ProviderCredential
from worker.agent_server.errors import AgentServerRefused
from worker.workspace.git_remotes import TOKEN_USERS, UnusableRemote, provider_root
from worker.workspace.setup import Shell
from worker.workspace.shell_scripts import LOGIN, LOGINS, with_variables

log = structlog.get_logger()


@dataclass(frozen=True)
class Logins:
    """Where git logs in with a stored token.

    Args:
        address: what the service shows the sandbox's owner's secrets under.
        session_key: the sandbox's, which it wants.
        providers: provider, the root of its repositories, and the user's name beside a token.
    """

    address: str
    session_key: str = field(repr=False)
    providers: Sequence[tuple[str, str, str]] = ()


def list_providers(tokens: Mapping[str, ProviderCredential]) -> list[tuple[str, str, str]]:
    """The providers with a token and a host."""
    found: list[tuple[str, str, str]] = []
    for provider, known in tokens.items():
        try:
            root = provider_root(provider, known.host)
        except UnusableRemote:
            continue
        if known.token:
            found.append((provider, root, TOKEN_USERS.get(provider, "token")))
    return found


def install_logins(shell: Shell, logins: Logins) -> None:
    """Have git in the sandbox ask the service for these logins. Best effort: a start does not fail for it.

    Raises:
        AgentServerError: the server could not be asked.
    """
    if not logins.providers:
        return
    pairs = [(f"credential.{root}.helper", f"{provider} {user}") for provider, root, user in logins.providers]
    words = shlex.join(word for pair in pairs for word in pair)
    result = shell.run_command(with_variables(LOGINS, helper=LOGIN, address=logins.address) + f"install {words}\n")
    folder = result.stdout.strip()
    if result.exit_code != 0 or not folder.startswith("/"):
        log.warning("git_logins_not_installed", exit_code=result.exit_code)
        return
    try:
        shell.upload(f"{folder}/key", f"X-Session-API-Key: {logins.session_key}\n".encode())
    except AgentServerRefused as refusal:
        log.warning("git_logins_not_installed", status=refusal.status)
