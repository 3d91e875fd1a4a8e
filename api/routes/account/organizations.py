"""Organizations, as in the hosted service. In this service each user has a personal one.

Agent Canvas lets a user change LLM profiles only as the owner of an organization. It keeps the organization's id in the
browser, even when another user logs in there or the service gets a new database. So any id in a path means the caller's
organization.
"""

from fastapi import APIRouter, Depends

from api.request.authentication import CurrentCaller, UserRoute
from api.request.query_params import RowId
from api.schemas.v1.organizations import MembershipInfo, OrganizationInfo, OrganizationPage, ProviderConnections


async def accept_organization(organization_id: RowId) -> None:
    """Accept the id of any organization in a path."""


router = APIRouter(prefix="/organizations", tags=["organizations"], route_class=UserRoute)
own = APIRouter(prefix="/{organization_id}", route_class=UserRoute, dependencies=[Depends(accept_organization)])


@router.get("")
async def get_organizations(caller: CurrentCaller) -> OrganizationPage:
    """The caller's organization."""
    return OrganizationPage(items=[OrganizationInfo(id=caller.id, name="Personal")], current_org_id=caller.id)


@own.get("/me")
async def get_membership(caller: CurrentCaller) -> MembershipInfo:
    """The caller's membership in the caller's organization, whatever the id: its owner."""
    return MembershipInfo(org_id=caller.id, user_id=caller.id)


@own.get("/provider-connections")
async def get_provider_connections() -> ProviderConnections:
    """The keys of LLM providers that several LLM profiles share: always none. Here each profile has its own key."""
    return ProviderConnections()


router.include_router(own)
