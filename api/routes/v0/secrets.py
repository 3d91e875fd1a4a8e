"""V0's operations for custom secrets, through V1's in `secrets`."""

from fastapi import APIRouter

from api.request.authentication import CurrentCaller
from api.request.context import ContextDep
from api.routes.v0.legacy_route import LegacyRoute, replaced_by
from api.routes.v1 import secrets as v1
from api.schemas.v0.settings import CustomSecrets, Message
from api.schemas.v1.secrets import CustomSecretCreate, CustomSecretInfo, CustomSecretWithoutValue
from shared.users import secrets

router = APIRouter(prefix="/secrets", tags=["secrets (V0)"], route_class=LegacyRoute)


@router.get("", **replaced_by("/api/v1/secrets/search"))
def list_secrets(context: ContextDep, caller: CurrentCaller) -> CustomSecrets:
    """The caller's secrets by name, without their values."""
    with context.database.reading() as session:
        described = secrets.describe_secrets(session, caller.id)
    return CustomSecrets(
        custom_secrets=[CustomSecretInfo(name=name, description=text) for name, text in described.items()]
    )


@router.post("", status_code=201, **replaced_by("/api/v1/secrets"))
def create_secret(context: ContextDep, caller: CurrentCaller, secret: CustomSecretCreate) -> Message:
    """Store a secret; 400 if one with this name exists."""
    v1.store_secret(context, caller, secret, new=True)
    return Message(message="Secret created successfully")


@router.put("/{secret_id}", **replaced_by("/api/v1/secrets/{secret_id}"))
def change_secret(
    context: ContextDep, caller: CurrentCaller, secret_id: str, change: CustomSecretWithoutValue
) -> Message:
    """Change the name and the description of a secret; its id is its name. Without a description it has none."""
    v1.change_secret(context, caller, secret_id, change)
    return Message(message="Secret updated successfully")


@router.delete("/{secret_id}", **replaced_by("/api/v1/secrets/{secret_id}"))
def delete_secret(context: ContextDep, caller: CurrentCaller, secret_id: str) -> Message:
    """Delete a secret."""
    v1.delete_secret(context, caller, secret_id)
    return Message(message="Secret deleted successfully")
