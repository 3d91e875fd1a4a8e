"""Sandbox specs: templates of sandboxes. Operators write them with the CLI."""

from typing import Annotated

from fastapi import APIRouter, Query

from api.request.authentication import UserRoute
from api.request.context import ContextDep
from api.request.query_params import Ids, Limit, PageId
from api.schemas.v1.fields import PageOf
from api.schemas.v1.sandboxes import SandboxSpecInfo, serialize_spec
from shared.ids import check_count
from shared.sandboxes import specs

router = APIRouter(prefix="/sandbox-specs", tags=["sandbox specs"], route_class=UserRoute)


@router.get("/search")
def search_specs(context: ContextDep, page_id: PageId = None, limit: Limit = 100) -> PageOf[SandboxSpecInfo]:
    """A page of the specs, the default one first."""
    with context.database.reading() as session:
        page = specs.search_specs(session, page_id, limit)
    return PageOf(items=[serialize_spec(spec) for spec in page.items], next_page_id=page.next_page_id)


@router.get("")
def get_specs(context: ContextDep, ids: Annotated[Ids, Query(alias="id")]) -> list[SandboxSpecInfo | None]:
    """The specs with these ids, in order; null for an unknown one."""
    check_count(ids)
    with context.database.reading() as session:
        return [serialize_spec(spec) if spec else None for spec in specs.get_specs(session, ids)]
