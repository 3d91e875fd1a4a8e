"""The secrets that a running sandbox may read with its session key: its owner's (wire contract 1.5).

Clients pass these URLs to the agent server, which requests a value when an agent needs it.
"""

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import PlainTextResponse

from api.errors.openapi import error_responses
from api.request.authentication import AgentServerRoute, CurrentSandbox
from api.request.context import ContextDep
from api.request.query_params import RowId
from api.schemas.v1.secrets import CustomSecretInfo, SecretNamesResponse
from shared.errors import Forbidden, NotFound, Unauthenticated
from shared.models import Sandbox
from shared.states import Desired, Status
from shared.users import secrets

router = APIRouter(prefix="/sandboxes/{sandbox_id}/settings/secrets", tags=["sandboxes"], route_class=AgentServerRoute)

TOKEN = "_token"  # noqa: S105 - a suffix of names


async def find_owner(sandbox: CurrentSandbox, sandbox_id: RowId) -> str:
    """The user whose secrets the calling sandbox may read.

    Raises:
        Unauthenticated: the sandbox does not run, or has no owner.
        Forbidden: the path names another sandbox.
    """
    owner_id = owner_of_running(sandbox)
    if sandbox.id != sandbox_id:
        raise Forbidden("the session key belongs to another sandbox")
    return owner_id


def owner_of_running(sandbox: Sandbox | None) -> str:
    """The owner of a running sandbox. The key of a sandbox that does not run gives no access.

    Raises:
        Unauthenticated: there is no sandbox, it does not run, or it has no owner.
    """
    usable = sandbox and sandbox.status == Status.RUNNING and sandbox.desired == Desired.RUNNING
    if not sandbox or not usable or sandbox.owner_id is None:
        raise Unauthenticated("the session key of a running sandbox is required in X-Session-API-Key")
    return sandbox.owner_id


OwnerId = Annotated[str, Depends(find_owner)]


@router.get("", responses=error_responses(403))
def get_secret_names(context: ContextDep, owner_id: OwnerId) -> SecretNamesResponse:
    """The names of the owner's secrets, and of git tokens as `<provider>_token`."""
    with context.database.reading() as session:
        described = secrets.describe_secrets(session, owner_id)
        tokens = secrets.provider_hosts(session, owner_id)
    named = {f"{provider}{TOKEN}": None for provider in tokens}
    # Where a secret and a token share a name, `get_secret` returns the secret.
    listed = described | {name: text for name, text in named.items() if name not in described}
    return SecretNamesResponse(secrets=[CustomSecretInfo(name=name, description=text) for name, text in listed.items()])


@router.get("/{secret_name}", response_class=PlainTextResponse, responses=error_responses(403))
def get_secret(context: ContextDep, owner_id: OwnerId, secret_name: str) -> PlainTextResponse:
    """The value of one secret or git token, as text."""
    with context.database.reading() as session:
        value = secrets.find_value(session, context.vault, owner_id, secret_name)
        if value is None and secret_name.endswith(TOKEN):
            value = secrets.find_token(session, context.vault, owner_id, secret_name.removesuffix(TOKEN))
    if value is None:
        raise NotFound("secret", secret_name, by="name")
    return PlainTextResponse(value)
