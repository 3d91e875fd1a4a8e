"""Suggestions for forms: models, their providers, skills."""

from typing import Annotated

from fastapi import APIRouter, Body, Query

from api.request.authentication import UserRoute
from api.request.query_params import Limit, PageId
from api.schemas.v1.catalog import LlmModel, LlmProvider, MarketplacePreview, SkillInfo
from api.schemas.v1.fields import PageOf
from api.schemas.v1.llm_catalog import SUGGESTED
from api.schemas.v1.settings import MAX_MARKETPLACES, Marketplace
from shared.sql.pagination import page_of_names

router = APIRouter(tags=["config"], route_class=UserRoute)

Text = Annotated[str | None, Query(max_length=256)]
NOT_LOADED = "this service loads no skills from marketplaces"

Verified = Annotated[bool | None, Query(alias="verified__eq")]


@router.get("/config/models/search")
async def search_models(
    query: Text = None,
    verified: Verified = None,
    provider__eq: Text = None,
    page_id: PageId = None,
    limit: Limit = 50,
) -> PageOf[LlmModel]:
    """A page of models, filtered."""
    found = {
        f"{model.provider}/{model.name}": model
        for model in SUGGESTED
        if provider__eq in (None, model.provider) and _matches(model.name, query, verified)
    }
    names, next_page_id = page_of_names("models", list(found), page_id, limit)
    items = [LlmModel(provider=found[name].provider, name=found[name].name, verified=True) for name in names]
    return PageOf(items=items, next_page_id=next_page_id)


@router.get("/config/providers/search")
async def search_providers(
    query: Text = None, verified: Verified = None, page_id: PageId = None, limit: Limit = 50
) -> PageOf[LlmProvider]:
    """A page of the models' providers, filtered."""
    providers = {model.provider for model in SUGGESTED if _matches(model.provider, query, verified)}
    names, next_page_id = page_of_names("providers", sorted(providers), page_id, limit)
    return PageOf(items=[LlmProvider(name=name, verified=True) for name in names], next_page_id=next_page_id)


@router.get("/skills/search")
async def search_skills(page_id: PageId = None, limit: Limit = 100) -> PageOf[SkillInfo]:
    """No skills: the agent server finds a project's own in each conversation."""
    page_of_names("skills", [], page_id, limit)
    return PageOf(items=[])


@router.post("/skills/marketplace-skills")
async def preview_marketplaces(
    marketplaces: Annotated[list[Marketplace], Body(max_length=MAX_MARKETPLACES)],
) -> MarketplacePreview:
    """The skills of these marketplaces: none, since marketplaces are stored but not loaded."""
    return MarketplacePreview(errors=[f"{one.name}: {NOT_LOADED}" for one in marketplaces])


def _matches(name: str, query: str | None, verified: bool | None) -> bool:
    # All suggested models are verified.
    return (query or "").lower() in name.lower() and verified is not False
