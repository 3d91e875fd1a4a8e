"""Repositories and branches of git providers on the wire (wire contract, appendix B)."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel

from api.schemas.v1.fields import one_of
from shared.users.settings import Provider


class SortOrder(StrEnum):
    """The orders of repositories in a search."""

    STARS_DESC = "stars-desc"
    STARS_ASC = "stars-asc"
    FORKS_DESC = "forks-desc"
    FORKS_ASC = "forks-asc"
    UPDATED_DESC = "updated-desc"
    UPDATED_ASC = "updated-asc"

    @property
    def key(self) -> str:
        """The property to sort by."""
        return self.value.partition("-")[0]

    @property
    def direction(self) -> str:
        """The direction, `asc` or `desc`."""
        return self.value.partition("-")[2]


class Repository(BaseModel):
    """V1's Repository."""

    id: str
    full_name: str
    git_provider: Annotated[str, one_of(Provider)]
    is_public: bool
    stargazers_count: int | None = None
    # V1's link to the next page; Agent Workspace has `next_page_id` instead.
    link_header: str | None = None
    pushed_at: str | None = None
    owner_type: Literal["user", "organization"] | None = None
    main_branch: str | None = None


class Branch(BaseModel):
    """V1's Branch."""

    name: str
    commit_sha: str
    protected: bool
    last_push_date: str | None = None
