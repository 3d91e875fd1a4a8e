"""git credentials in a sandbox: a credential helper asks the service for the owner's tokens, and stores none of them.

The helper stores the sandbox's session key, in a file that only the sandbox's user can read. The key gives access to
the sandbox itself, and, while it runs, to its owner's secrets (decision 2).
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
    """The logins of git with the owner's stored tokens.

    Args:
        address: the service's URL of the owner's secrets.
        session_key: the sandbox's key, which that URL requires.
        providers: for each provider its name, the root URL of its repositories, and the user name beside a token.
    """

    address: str
    session_key: str = field(repr=False)
    providers: Sequence[tuple[str, str, str]] = ()


def list_providers(tokens: Mapping[str, ProviderCredential]) -> list[tuple[str, str, str]]:
    """The providers with a token and a host."""
    found: list[tuple[str, str, str]] = []
    for provider, stored in tokens.items():
        try:
            root = provider_root(provider, stored.host)
        except UnusableRemote:
            continue
        if stored.token:
            found.append((provider, root, TOKEN_USERS.get(provider, "token")))
    return found


def install_logins(shell: Shell, logins: Logins) -> None:
    """Install a credential helper for these logins in the sandbox. Best effort: a start does not fail without it.

    Raises:
        AgentServerError: the agent server does not answer, or refuses the command.
    """
    if not logins.providers:
        return
    pairs = [(f"credential.{root}.helper", f"{provider} {user}") for provider, root, user in logins.providers]
    arguments = shlex.join(word for pair in pairs for word in pair)
    result = shell.run_command(with_variables(LOGINS, helper=LOGIN, address=logins.address) + f"install {arguments}\n")
    folder = result.stdout.strip()
    if result.exit_code != 0 or not folder.startswith("/"):
        log.warning("git_logins_not_installed", exit_code=result.exit_code)
        return
    try:
        shell.upload(f"{folder}/key", f"X-Session-API-Key: {logins.session_key}\n".encode())
    except AgentServerRefused as error:
        log.warning("git_logins_not_installed", status=error.status)
