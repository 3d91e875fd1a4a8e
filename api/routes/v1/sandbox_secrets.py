"""What a sandbox may read of its owner's secrets, with its own key, while it runs (wire contract 1.5).

Clients hand these addresses to the agent server, which asks for a value when an agent needs it.
"""

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import PlainTextResponse

from api.errors.openapi import error_responses
from api.request.authentication import ForAgentServers, FromSandbox
from api.request.context import ContextDep
from api.request.query_params import RowId
from api.schemas.v1.secrets import CustomSecretInfo, SecretNamesResponse
from shared.errors import Forbidden, NotFound, Unauthenticated
from shared.models import Sandbox
from shared.states import Desired, Status
from shared.users import secrets

router = APIRouter(prefix="/sandboxes/{sandbox_id}/settings/secrets", tags=["sandboxes"], route_class=ForAgentServers)

TOKEN = "_token"  # noqa: S105 - the end of a name


async def find_owner(sandbox: FromSandbox, sandbox_id: RowId) -> str:
    """The user whose secrets the sandbox that asks may read.

    Raises:
        Unauthenticated: it does not run, or is nobody's.
        Forbidden: it asks in another one's name.
    """
    owner_id = owner_of_running(sandbox)
    if sandbox.id != sandbox_id:
        raise Forbidden("that is another sandbox's key")
    return owner_id


def owner_of_running(sandbox: Sandbox | None) -> str:
    """The owner of a sandbox that runs: the key of any other one opens nothing.

    Raises:
        Unauthenticated: it does not run, or is nobody's, or there is none.
    """
    usable = sandbox and sandbox.status == Status.RUNNING and sandbox.desired == Desired.RUNNING
    if not sandbox or not usable or sandbox.owner_id is None:
        raise Unauthenticated("the session key of a running sandbox is needed in X-Session-API-Key")
    return sandbox.owner_id


OwnerId = Annotated[str, Depends(find_owner)]


@router.get("", responses=error_responses(403))
def get_secret_names(context: ContextDep, owner_id: OwnerId) -> SecretNamesResponse:
    """The names of the owner's secrets, and of git tokens as `<provider>_token`."""
    with context.database.reading() as session:
        described = secrets.describe_secrets(session, owner_id)
        tokens = secrets.provider_hosts(session, owner_id)
    named = {f"{provider}{TOKEN}": None for provider in tokens}
    # Under a name that both have, the secret is what `get_secret` answers with.
    listed = described | {name: text for name, text in named.items() if name not in described}
    return SecretNamesResponse(secrets=[CustomSecretInfo(name=name, description=text) for name, text in listed.items()])


@router.get("/{secret_name}", response_class=PlainTextResponse, responses=error_responses(403))
def get_secret(context: ContextDep, owner_id: OwnerId, secret_name: str) -> PlainTextResponse:
    """The value of one of them, as text."""
    with context.database.reading() as session:
        value = secrets.find_value(session, context.vault, owner_id, secret_name)
        if value is None and secret_name.endswith(TOKEN):
            value = secrets.find_token(session, context.vault, owner_id, secret_name.removesuffix(TOKEN))
    if value is None:
        raise NotFound("secret", secret_name, by="name")
    return PlainTextResponse(value)
