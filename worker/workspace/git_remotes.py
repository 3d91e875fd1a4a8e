"""The URLs of git providers' repositories, and the user names of their tokens."""

from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

DEFAULT_HOSTS = {
    "azure_devops": "dev.azure.com",
    "bitbucket": "bitbucket.org",
    "forgejo": "codeberg.org",
    "github": "github.com",
    "gitlab": "gitlab.com",
}
# The user name that a provider requires beside a token; other providers accept any.
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
class Repository:
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
        return f"{self._root}/{quote(_path(self.provider, parts))}"

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
    def _root(self) -> str:
        return provider_root(self.provider, self.host)


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


def _path(provider: str, parts: list[str]) -> str:
    *owners, repository = parts
    if provider == "azure_devops":
        return "/".join([*owners, "_git", repository])
    if provider == "bitbucket_data_center":
        return "/".join(["scm", *parts]) + ".git"
    return "/".join(parts) + ".git"
