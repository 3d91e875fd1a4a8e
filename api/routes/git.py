"""Searches at git providers, each with the caller's own token (wire contract 1.12)."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AfterValidator
from starlette.concurrency import run_in_threadpool

from api.auth import Caller, ForUsers, Me
from api.context import Context, Here
from api.git.pages import open_window, page_id_of
from api.git.provider import Found, GitProvider, Item
from api.git.providers import find_tasks, open_provider
from api.query import Limit, PageId
from api.refusals import refusals
from api.routes.users import NO_PROVIDER
from api.schemas.git import Branch, Repository, SortOrder
from api.schemas.suggested_tasks import SuggestedTask
from api.schemas.texts import check_repository
from api.schemas.wire import PageOf
from shared.errors import Forbidden, Invalid
from shared.store import secrets
from shared.store.secrets import ProviderCredential
from shared.user_settings import Provider

router = APIRouter(prefix="/git", tags=["git providers"], route_class=ForUsers)

# Of what is asked of the provider.
ASKED = refusals(403, 404, 502, 504)

Name = Annotated[str, Query(max_length=500), AfterValidator(check_repository)]
Words = Annotated[str, Query(max_length=256)]


@router.get("/installations/search", responses=ASKED)
async def search_installations(
    here: Here, me: Me, provider: Provider, page_id: PageId = None, limit: Limit = 100
) -> PageOf[str]:
    """Where a provider keeps the caller's repositories together: installations, workspaces or projects."""
    asked = await _open(here, me, provider)
    kind = f"{provider}/installations"
    found = await asked.installations(open_window(kind, page_id, limit))
    return _page(kind, limit, found)


@router.get("/repositories/search", responses=ASKED)
async def search_repositories(
    here: Here,
    me: Me,
    provider: Provider,
    query: Words | None = None,
    installation_id: Words | None = None,
    page_id: PageId = None,
    limit: Limit = 100,
    sort_order: SortOrder | None = None,
) -> PageOf[Repository]:
    """The caller's repositories at a provider, or with `query` those whose names hold it."""
    if sort_order is not None and not query:
        raise Invalid("sort_order goes with query only")
    asked = await _open(here, me, provider)
    kind = f"{provider}/repositories"
    window = open_window(kind, page_id, limit)
    if query:
        found = await asked.search(window, query, sort_order or SortOrder.STARS_DESC)
    else:
        found = await asked.repositories(window, installation_id)
    return _page(kind, limit, found)


@router.get("/branches/search", responses=ASKED)
async def search_branches(
    here: Here,
    me: Me,
    provider: Provider,
    repository: Name,
    query: Words,
    page_id: PageId = None,
    limit: Limit = 30,
) -> PageOf[Branch]:
    """A repository's branches, or those whose names hold `query`, if that is not empty."""
    asked = await _open(here, me, provider)
    kind = f"{provider}/branches"
    return _page(kind, limit, await asked.branches(open_window(kind, page_id, limit), repository, query))


@router.get("/suggested-tasks/search", responses=ASKED)
async def search_suggested_tasks(
    here: Here, me: Me, page_id: PageId = None, limit: Limit = 30
) -> PageOf[SuggestedTask]:
    """What an agent might do at the caller's providers; one that does not answer is passed over for the others."""
    window = open_window("tasks", page_id, limit)
    first = window.count(0)
    tasks = await find_tasks(here.git, await _credentials(here, me))
    last = first + limit
    return _page("tasks", limit, Found(tasks[first:last], last if last < len(tasks) else None))


async def _open(here: Context, me: Caller, provider: str) -> GitProvider:
    return open_provider(here.git, provider, await _credentials(here, me))


async def _credentials(here: Context, me: Caller) -> Mapping[str, ProviderCredential]:
    found = await run_in_threadpool(_read_credentials, here, me)
    if not any(known.token for known in found.values()):
        raise Forbidden(NO_PROVIDER)
    return found


def _read_credentials(here: Context, me: Caller) -> Mapping[str, ProviderCredential]:
    with here.database.reading() as session:
        return secrets.provider_tokens(session, here.vault, me.id)


def _page(kind: str, limit: int, found: Found[Item]) -> PageOf[Item]:
    return PageOf(items=found.items, next_page_id=page_id_of(kind, limit, found.following))
