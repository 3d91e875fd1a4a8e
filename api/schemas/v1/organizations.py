"""Organizations and memberships on the wire."""

from pydantic import BaseModel, Field


class OrganizationInfo(BaseModel):
    """An organization."""

    id: str
    name: str
    is_personal: bool = True


class OrganizationPage(BaseModel):
    """All organizations of the caller, and the id of the selected one."""

    items: list[OrganizationInfo]
    current_org_id: str | None
    next_page_id: None = None


class MembershipInfo(BaseModel):
    """A user's role in an organization; the permissions are those of the role."""

    org_id: str
    user_id: str
    role: str = "owner"
    permissions: list[str] | None = None


class ProviderConnections(BaseModel):
    """Keys of LLM providers, none."""

    connections: list[None] = Field(default_factory=list, max_length=0)
