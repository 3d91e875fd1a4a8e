"""Custom secrets as V0 lists them (wire contract, section 5)."""

from pydantic import BaseModel

from api.schemas.v1.secrets import CustomSecretInfo


class CustomSecrets(BaseModel):
    """All of a user's secrets, without their values."""

    custom_secrets: list[CustomSecretInfo]
