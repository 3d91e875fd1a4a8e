"""`python -m deploy.service [PROCESS=NUMBER...]`: prepare the installation, then supervise its processes."""

import signal
import sys


def run(arguments: list[str]) -> None:
    """Start, and say what is wrong in one line. Being told to stop is no defect: it has no traceback."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    # After that: it takes a second.
    from deploy.service.errors import ServiceError  # noqa: PLC0415
    from deploy.service.start import main  # noqa: PLC0415

    try:
        main(arguments)
    except ServiceError as error:
        sys.exit(str(error))


def _leave(number: int, _frame: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    run(sys.argv[1:])
