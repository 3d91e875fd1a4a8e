"""The API's sockets, held open by the supervisor while API processes come and go."""

import fcntl
import os

from api.server.sockets import VARIABLE, open_sockets
from deploy.service.errors import ServiceError
from shared.settings import Settings

# supervisord closes what is below in the processes that it starts (its `minfds`).
LOWEST = 64


def hold_sockets(settings: Settings) -> None:
    """Open them for as long as this process lives, and tell the API processes to come by the environment.

    Raises:
        ServiceError: an address is taken, or is none of this machine's.
    """
    numbers = []
    try:
        listeners = open_sockets(settings, shared=False)
    except OSError as error:
        raise ServiceError(
            f"the API can't listen where it is to (AW_HOST, AW_GATEWAY_HOST, AW_PORT): {error}"
        ) from None
    for listener in listeners:
        numbers.append(fcntl.fcntl(listener.fileno(), fcntl.F_DUPFD, LOWEST))
        os.set_inheritable(numbers[-1], True)  # noqa: FBT003 - it has no name for it
        listener.close()
    os.environ[VARIABLE] = ",".join(map(str, numbers))
