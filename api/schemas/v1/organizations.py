"""Organizations and memberships on the wire."""

from pydantic import BaseModel


class OrganizationInfo(BaseModel):
    """An organization."""

    id: str
    name: str
    is_personal: bool = True


class OrganizationPage(BaseModel):
    """All of the caller's, and the one that is chosen."""

    items: list[OrganizationInfo]
    current_org_id: str | None
    next_page_id: None = None


class MembershipInfo(BaseModel):
    """What somebody is in an organization; permissions are those of the role."""

    org_id: str
    user_id: str
    role: str = "owner"
    permissions: list[str] | None = None
