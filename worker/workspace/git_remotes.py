"""git's remotes: the URLs of the providers' repositories, their clones, and the logins there.

A credential helper in the sandbox requests the owner's tokens from the service, and stores none of them. It stores the
sandbox's session key, in a file that only the sandbox's user can read. The key gives access to the sandbox itself, and,
while it runs, to its owner's secrets (decision 2).
"""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

import structlog

from shared.agent_server.errors import AgentServerRefused
from shared.redaction import secrets_of_token
from shared.users.secrets import ProviderCredential
from shared.users.settings import DEFAULT_HOSTS
from worker.workspace.failures import RepositoryUnavailable
from worker.workspace.shell_scripts import FIND_HEAD, LOGIN, LOGINS, Shell, with_variables

log = structlog.get_logger()

# The user name that a provider requires with a token; other providers accept any.
TOKEN_USERS = {
    "bitbucket": "x-token-auth",
    "bitbucket_data_center": "x-token-auth",
    "github": "x-access-token",
    "gitlab": "oauth2",
}
# Providers with app passwords, stored as `user:password`.
PASSWORD_PROVIDERS = ("bitbucket", "bitbucket_data_center")


class UnusableRemote(ValueError):
    """The repository's name or the provider's host gives no valid URL."""


@dataclass(frozen=True)
class GitRepository:
    """A repository to clone.

    Args:
        name: owner and repository, `acme/app`; for Azure DevOps organization, project and repository.
        provider: one of the provider names of the wire contract, 1.9.
        host: the provider's host if it is not the public one, with a scheme if that is not https.
        branch: must exist; None: a new branch is created from the default branch.
        full: whether to clone the whole history.
        keeps_branch: the branch is for a new clone only; an existing clone stays on its branch.
    """

    name: str
    provider: str = "github"
    token: str | None = field(default=None, repr=False)
    host: str | None = None
    branch: str | None = None
    full: bool = False
    keeps_branch: bool = False

    @property
    def folder(self) -> str:
        """The name of the clone's folder."""
        return self.name.rsplit("/", 1)[-1].removesuffix(".git")

    @property
    def url(self) -> str:
        """The repository's URL, without credentials.

        Raises:
            UnusableRemote: the name or the host is invalid.
        """
        parts = self.name.removesuffix(".git").split("/")
        if len(parts) < 2 or any(part in ("", ".", "..") for part in parts):
            raise UnusableRemote(f"{self.name!r} is not an owner and a repository")
        root = self._root
        # The stored host names the organization, which its API needs, and so does the repository.
        if self.provider == "azure_devops" and len(parts) > 2 and root.endswith(f"/{parts[0]}"):
            parts = parts[1:]
        return f"{root}/{quote(_path(self.provider, parts))}"

    @property
    def credential(self) -> str:
        """The line with the token for git's credential file; empty without a token."""
        if not self.token:
            return ""
        user, password = TOKEN_USERS.get(self.provider, "token"), self.token
        if self.provider in PASSWORD_PROVIDERS and ":" in self.token:
            user, password = self.token.split(":", 1)
        root = urlsplit(self._root)
        return f"{root.scheme}://{quote(user, safe='')}:{quote(password, safe='')}@{root.netloc}\n"

    @property
    def secrets(self) -> list[str]:
        """The token, and the password in it, as they are and as URLs have them."""
        parts = secrets_of_token(self.token or "")
        return [*parts, *(quote(part, safe="") for part in parts)]

    @property
    def _root(self) -> str:
        return provider_root(self.provider, self.host)


@dataclass(frozen=True)
class Logins:
    """The logins of git with the owner's stored tokens.

    Args:
        address: the service's URL of the owner's secrets.
        session_key: the sandbox's key, which that URL requires.
        providers: for each provider its name, the root URL of its repositories, and the user name for a token.
    """

    address: str
    session_key: str = field(repr=False)
    providers: Sequence[tuple[str, str, str]] = ()


def provider_root(provider: str, host: str | None) -> str:
    """The root URL of a provider's repositories.

    Raises:
        UnusableRemote: no host is known, or it is invalid.
    """
    host = host or DEFAULT_HOSTS.get(provider)
    if not host:
        raise UnusableRemote(f"no host is stored for the provider {provider}")
    root = (host if "://" in host else f"https://{host}").rstrip("/")
    parts = urlsplit(root)
    if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc:
        raise UnusableRemote(f"the host stored for the provider {provider} is not a web address")
    return root


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


def find_head(shell: Shell, folder: str, url: str, branch: str) -> str | None:
    """The branch, or the requested tag, that the clone is on; empty: neither; None: there is no clone.

    A clone gets its name only when it is complete.

    Raises:
        RepositoryUnavailable: the folder has other content.
    """
    result = shell.run_command(with_variables(FIND_HEAD, folder=folder, url=url, branch=branch))
    if result.exit_code == 0:
        mark, _, head = result.stdout.strip().partition("\n")
        return head.strip() if mark == "cloned" else None
    raise RepositoryUnavailable(f"{folder} exists and is not a clone of the repository")


def recognize(shell: Shell, folder: str, repositories: Sequence[GitRepository]) -> tuple[str, str] | tuple[None, None]:
    """The provider of the clone, and the branch that it is on; None: it is a clone of none of these repositories."""
    for repository in repositories:
        try:
            head = find_head(shell, folder, repository.url, repository.branch or "")
        except (RepositoryUnavailable, UnusableRemote):
            continue
        if head is not None:
            return repository.provider, head
    return None, None


def install_logins(shell: Shell, logins: Logins) -> None:
    """Install a credential helper for these logins in the sandbox. Best effort: a start does not fail without it.

    Raises:
        AgentServerError: the agent server does not respond, or rejects the command.
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


def _path(provider: str, parts: list[str]) -> str:
    *owners, repository = parts
    if provider == "azure_devops":
        return "/".join([*owners, "_git", repository])
    if provider == "bitbucket_data_center":
        return "/".join(["scm", *parts]) + ".git"
    return "/".join(parts) + ".git"
