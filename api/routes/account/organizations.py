"""Organizations, as clients of the hosted service know them: here each user has one of their own.

Agent Canvas lets its user change LLM profiles only as the owner of one.
"""

from typing import Annotated

from fastapi import APIRouter, Path

from api.request.authentication import CurrentCaller, ForUsers
from api.schemas.v1.organizations import MembershipInfo, OrganizationInfo, OrganizationPage
from shared.errors import NotFound

router = APIRouter(prefix="/organizations", tags=["organizations"], route_class=ForUsers)

OrganizationId = Annotated[str, Path(max_length=256)]


async def check_organization(caller: CurrentCaller, organization_id: OrganizationId) -> None:
    """Let the caller see no other organization than their own.

    Raises:
        NotFound: it is none, or another's.
    """
    if organization_id != caller.id:
        raise NotFound("organization", organization_id)


@router.get("")
async def get_organizations(caller: CurrentCaller) -> OrganizationPage:
    """The caller's organization."""
    return OrganizationPage(items=[OrganizationInfo(id=caller.id, name="Personal")], current_org_id=caller.id)


@router.get("/{organization_id}/me")
async def get_membership(caller: CurrentCaller, organization_id: OrganizationId) -> MembershipInfo:
    """What the caller may do there: all of it."""
    await check_organization(caller, organization_id)
    return MembershipInfo(org_id=caller.id, user_id=caller.id)
