"""The API's sockets. The supervisor holds them open across restarts of API processes."""

import fcntl
import os

from api.server.sockets import VARIABLE, open_sockets
from deploy.service.errors import ServiceError
from shared.settings import Settings

# supervisord closes lower file descriptors in the processes that it starts (its `minfds`).
MIN_DESCRIPTOR = 64


def hold_sockets(settings: Settings) -> None:
    """Open the sockets for the life of this process, and pass them to API processes through the environment.

    Raises:
        ServiceError: an address is in use, or not an address of this machine.
    """
    numbers = []
    try:
        listeners = open_sockets(settings, shared=False)
    except OSError as error:
        raise ServiceError(
            f"the API cannot listen on its addresses (AW_HOST, AW_PORT, AW_CLIENT_PORT): {error}", "a-port-is-in-use"
        ) from None
    for listener in listeners:
        numbers.append(fcntl.fcntl(listener.fileno(), fcntl.F_DUPFD, MIN_DESCRIPTOR))
        os.set_inheritable(numbers[-1], True)  # noqa: FBT003 - a positional-only parameter
        listener.close()
    os.environ[VARIABLE] = ",".join(map(str, numbers))
