"""The caller on the wire (wire contract 1.10)."""

from pydantic import BaseModel

from api.schemas.v1.settings import SettingsInfoV1


class UserInfo(SettingsInfoV1):
    """The settings, and who has them; with secrets in clear where the answer says so."""

    id: str
    name: str


class UserGitInfo(BaseModel):
    """How the user is known to git: what is stored, no provider is asked."""

    id: str
    login: str
    avatar_url: str
    company: str | None = None
    name: str | None = None
    email: str | None = None
