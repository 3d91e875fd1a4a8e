"""V0's operations for custom secrets; what they do is in `secrets`."""

from fastapi import APIRouter

from api.auth import Me
from api.context import Here
from api.legacy import LegacyRoute, replaced_by
from api.routes import secrets as v1
from api.schemas.secrets import CustomSecretCreate, CustomSecretInfo, CustomSecretWithoutValue
from api.schemas.secrets_v0 import CustomSecrets
from api.schemas.settings import Message
from shared.store import secrets

router = APIRouter(prefix="/secrets", tags=["secrets (V0)"], route_class=LegacyRoute)


@router.get("", **replaced_by("/api/v1/secrets/search"))
def list_secrets(here: Here, me: Me) -> CustomSecrets:
    """The caller's secrets by name, without their values."""
    with here.database.reading() as session:
        described = secrets.describe_secrets(session, me.id)
    return CustomSecrets(
        custom_secrets=[CustomSecretInfo(name=name, description=text) for name, text in described.items()]
    )


@router.post("", status_code=201, **replaced_by("/api/v1/secrets"))
def create_secret(here: Here, me: Me, secret: CustomSecretCreate) -> Message:
    """Store a secret; a 400 if there is one of that name."""
    v1.store_secret(here, me, secret, new=True)
    return Message(message="Secret created successfully")


@router.put("/{secret_id}", **replaced_by("/api/v1/secrets/{secret_id}"))
def change_secret(here: Here, me: Me, secret_id: str, change: CustomSecretWithoutValue) -> Message:
    """Rename or redescribe a secret; its id is its name."""
    v1.change_secret(here, me, secret_id, change)
    return Message(message="Secret updated successfully")


@router.delete("/{secret_id}", **replaced_by("/api/v1/secrets/{secret_id}"))
def delete_secret(here: Here, me: Me, secret_id: str) -> Message:
    """Forget a secret."""
    v1.delete_secret(here, me, secret_id)
    return Message(message="Secret deleted successfully")
