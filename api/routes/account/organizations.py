"""Organizations, as in the hosted service. In this service each user has a personal one.

Agent Canvas lets a user change LLM profiles only as the owner of an organization.
"""

from typing import Annotated

from fastapi import APIRouter, Path

from api.request.authentication import CurrentCaller, UserRoute
from api.schemas.v1.organizations import MembershipInfo, OrganizationInfo, OrganizationPage, ProviderConnections
from shared.errors import NotFound

router = APIRouter(prefix="/organizations", tags=["organizations"], route_class=UserRoute)

OrganizationId = Annotated[str, Path(max_length=256)]


async def check_organization(caller: CurrentCaller, organization_id: OrganizationId) -> None:
    """Require the caller's own organization.

    Raises:
        NotFound: the caller has no such organization.
    """
    if organization_id != caller.id:
        raise NotFound("organization", organization_id)


@router.get("")
async def get_organizations(caller: CurrentCaller) -> OrganizationPage:
    """The caller's organization."""
    return OrganizationPage(items=[OrganizationInfo(id=caller.id, name="Personal")], current_org_id=caller.id)


@router.get("/{organization_id}/me")
async def get_membership(caller: CurrentCaller, organization_id: OrganizationId) -> MembershipInfo:
    """The caller's membership in an organization: its owner."""
    await check_organization(caller, organization_id)
    return MembershipInfo(org_id=caller.id, user_id=caller.id)


@router.get("/{organization_id}/provider-connections")
async def get_provider_connections(caller: CurrentCaller, organization_id: OrganizationId) -> ProviderConnections:
    """The keys of LLM providers that several LLM profiles share: always none. Here each profile has its own key."""
    await check_organization(caller, organization_id)
    return ProviderConnections()
