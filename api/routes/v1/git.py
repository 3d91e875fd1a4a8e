"""Search git providers with the caller's own tokens (wire contract 1.12)."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AfterValidator

from api.errors.openapi import error_responses
from api.git.provider import Found, GitProvider, Item, open_window, page_id_of
from api.git.registry import find_tasks, open_provider
from api.request.authentication import Caller, CurrentCaller, UserRoute
from api.request.context import Context, ContextDep
from api.request.query_params import Limit, PageId
from api.routes.v1.users import NO_PROVIDER
from api.schemas.v1.fields import PageOf, check_repository
from api.schemas.v1.git import Branch, Repository, SortOrder
from api.schemas.v1.suggested_tasks import SuggestedTask
from shared.errors import Forbidden, Invalid
from shared.users import secrets
from shared.users.secrets import ProviderCredential
from shared.users.settings import Provider

router = APIRouter(prefix="/git", tags=["git providers"], route_class=UserRoute)

# Errors of requests to the provider.
ERRORS = error_responses(403, 404, 502, 504)

Name = Annotated[str, Query(max_length=500), AfterValidator(check_repository)]
Words = Annotated[str, Query(max_length=256)]


@router.get("/installations/search", responses=ERRORS)
async def search_installations(
    context: ContextDep, caller: CurrentCaller, provider: Provider, page_id: PageId = None, limit: Limit = 100
) -> PageOf[str]:
    """The provider's groups of the caller's repositories: installations, workspaces or projects."""
    client = await _open(context, caller, provider)
    kind = f"{provider}/installations"
    found = await client.installations(open_window(kind, page_id, limit))
    return _page(kind, limit, found)


@router.get("/repositories/search", responses=ERRORS)
async def search_repositories(
    context: ContextDep,
    caller: CurrentCaller,
    provider: Provider,
    query: Words | None = None,
    installation_id: Words | None = None,
    page_id: PageId = None,
    limit: Limit = 100,
    sort_order: SortOrder | None = None,
) -> PageOf[Repository]:
    """The caller's repositories at a provider; with `query`, those whose names contain it."""
    if sort_order is not None and not query:
        raise Invalid("sort_order needs query")
    client = await _open(context, caller, provider)
    kind = f"{provider}/repositories"
    window = open_window(kind, page_id, limit)
    if query:
        found = await client.search(window, query, sort_order or SortOrder.STARS_DESC)
    else:
        found = await client.repositories(window, installation_id)
    return _page(kind, limit, found)


@router.get("/branches/search", responses=ERRORS)
async def search_branches(
    context: ContextDep,
    caller: CurrentCaller,
    provider: Provider,
    repository: Name,
    query: Words,
    page_id: PageId = None,
    limit: Limit = 30,
) -> PageOf[Branch]:
    """A repository's branches; if `query` is not empty, those whose names contain it."""
    client = await _open(context, caller, provider)
    kind = f"{provider}/branches"
    return _page(kind, limit, await client.branches(open_window(kind, page_id, limit), repository, query))


@router.get("/suggested-tasks/search", responses=ERRORS)
async def search_suggested_tasks(
    context: ContextDep, caller: CurrentCaller, page_id: PageId = None, limit: Limit = 30
) -> PageOf[SuggestedTask]:
    """Tasks for an agent, found at the caller's providers. A provider that does not answer is left out."""
    window = open_window("tasks", page_id, limit)
    first = window.count(0)
    tasks = await find_tasks(context.git, await _credentials(context, caller))
    last = first + limit
    return _page("tasks", limit, Found(tasks[first:last], last if last < len(tasks) else None))


async def _open(context: Context, caller: Caller, provider: str) -> GitProvider:
    return open_provider(context.git, provider, await _credentials(context, caller))


async def _credentials(context: Context, caller: Caller) -> Mapping[str, ProviderCredential]:
    found = await context.run_in_turn(_read_credentials, context, caller)
    if not any(known.token for known in found.values()):
        raise Forbidden(NO_PROVIDER)
    return found


def _read_credentials(context: Context, caller: Caller) -> Mapping[str, ProviderCredential]:
    with context.database.reading() as session:
        return secrets.provider_tokens(session, context.vault, caller.id)


def _page(kind: str, limit: int, found: Found[Item]) -> PageOf[Item]:
    return PageOf(items=found.items, next_page_id=page_id_of(kind, limit, found.following))
