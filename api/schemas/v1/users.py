"""The caller on the wire (wire contract 1.10)."""

from pydantic import BaseModel

from api.schemas.v1.settings import SettingsInfoV1


class UserInfo(SettingsInfoV1):
    """The caller and their settings; secrets are in clear only if the request asks for them and may have them."""

    id: str
    name: str


class UserGitInfo(BaseModel):
    """The user's stored identity for git. No provider is queried."""

    id: str
    login: str
    avatar_url: str
    company: str | None = None
    name: str | None = None
    email: str | None = None
