"""Sandbox specs: what a sandbox can be made from. They are written by the operator's CLI."""

from typing import Annotated

from fastapi import APIRouter, Query

from api.auth import ForUsers
from api.context import Here
from api.query import Ids, Limit, PageId
from api.schemas.sandboxes import SandboxSpecInfo, show_spec
from api.schemas.wire import PageOf
from shared.ids import check_count
from shared.store import specs

router = APIRouter(prefix="/sandbox-specs", tags=["sandbox specs"], route_class=ForUsers)

MOST_IDS = 100


@router.get("/search")
def search_specs(here: Here, page_id: PageId = None, limit: Limit = 100) -> PageOf[SandboxSpecInfo]:
    """A page of the specs, the default one first."""
    with here.database.reading() as session:
        page = specs.search_specs(session, page_id, limit)
    return PageOf(items=[show_spec(spec) for spec in page.items], next_page_id=page.next_page_id)


@router.get("")
def get_specs(here: Here, ids: Annotated[Ids, Query(alias="id")]) -> list[SandboxSpecInfo | None]:
    """The specs of those ids, in order; null for an unknown one."""
    check_count(ids, most=MOST_IDS)
    with here.database.reading() as session:
        return [show_spec(spec) if spec else None for spec in specs.get_specs(session, ids)]
