"""Agent servers' responses as the API uses them: parsed documents, and errors that are passed on to clients."""

from typing import Any

from api.errors.upstream import UpstreamRejected
from api.json_text import TooCostly, check_size, in_thread_if_large
from shared.agent_server.errors import ResponseTooLarge, WrongServer
from shared.agent_server.responses import AgentServerResponse, Shape, read_shape
from shared.json_documents import check_texts

# The approximate limit of `read_shape`, for which each comma in a file's text counts as a value; `check_size` counts
# exactly.
MAX_VALUES = 1_000_000
# Statuses that a client's request can cause. Neither 401 nor 403 is among them: the key belongs to this service.
CLIENT_ERRORS = (400, 404, 409, 413, 422, 429)


def raise_client_error(response: AgentServerResponse) -> None:
    """Pass an agent server's error on to the client whose values the request contains.

    Raises:
        UpstreamRejected: the status is one of `CLIENT_ERRORS`. A 422 becomes a 400: its entries describe the request of
            this service, not the client's.
    """
    if response.status in CLIENT_ERRORS:
        status = 400 if response.status == 422 else response.status
        raise UpstreamRejected(status, response.detail or f"the agent server responded with {response.status}")


async def read_response(response: AgentServerResponse, shape: type[Shape]) -> tuple[Shape, Any]:
    """Return the parsed shape of a success, and the whole document, which can be sent as JSON in a response.

    Raises:
        AgentServerError: the response is not a success.
        WrongServer: it is not JSON of this shape. ResponseTooLarge: it has too many values.
    """
    content = response.require_success()
    try:
        return await in_thread_if_large(content, _read, content, shape)
    except TooCostly as error:
        raise ResponseTooLarge(f"the agent server's response takes too long to parse: {error}") from None
    except ValueError:
        raise WrongServer("the agent server's response is not JSON of the expected schema") from None


def _read(content: bytes, shape: type[Shape]) -> tuple[Shape, Any]:
    check_size(content)
    parsed, document = read_shape(content, shape, MAX_VALUES)
    return parsed, check_texts(document)
