"""The supported git providers, by name."""

import asyncio
from collections.abc import Mapping

import structlog

from api.git.azure_devops import AzureDevOps
from api.git.bitbucket import Bitbucket
from api.git.bitbucket_data_center import BitbucketDataCenter
from api.git.forgejo import Forgejo
from api.git.github import GitHub
from api.git.gitlab import GitLab
from api.git.http_client import GitClient
from api.git.provider import GitProvider
from api.schemas.v1.suggested_tasks import SuggestedTask
from shared.errors import Forbidden, Invalid, WorkspaceError
from shared.users.secrets import ProviderCredential

log = structlog.get_logger()

KINDS: Mapping[str, type[GitProvider]] = {
    kind.name: kind for kind in (GitHub, GitLab, Bitbucket, BitbucketDataCenter, Forgejo, AzureDevOps)
}


def open_provider(client: GitClient, name: str, credentials: Mapping[str, ProviderCredential]) -> GitProvider:
    """Return a client of a provider, with the user's token.

    Raises:
        Forbidden: no token is stored for the provider, or its host is not allowed.
        Invalid: the provider is not supported.
    """
    if name not in KINDS:
        raise Invalid(f"{name} is not a supported git provider")
    if name not in credentials:
        raise Forbidden(f"no token is stored for {name}")
    return KINDS[name](client, credentials[name])


async def find_tasks(client: GitClient, credentials: Mapping[str, ProviderCredential]) -> list[SuggestedTask]:
    """List suggested tasks at all providers that the user has tokens for. Failing providers are skipped.

    Raises:
        WorkspaceError: all providers fail; this is the first one's error.
    """
    names = [name for name, known in credentials.items() if name in KINDS and KINDS[name].has_tasks and known.token]
    found = await asyncio.gather(*(_tasks_at(client, name, credentials) for name in names), return_exceptions=True)
    failures = [error for error in found if isinstance(error, BaseException)]
    for error in failures:
        if not isinstance(error, WorkspaceError) or len(failures) == len(found):
            raise error
        log.info("git_provider_skipped", error=type(error).__name__)
    return [task for tasks in found if not isinstance(tasks, BaseException) for task in tasks]


async def _tasks_at(client: GitClient, name: str, credentials: Mapping[str, ProviderCredential]) -> list[SuggestedTask]:
    return await open_provider(client, name, credentials).tasks()
