"""`python -m deploy.service [PROCESS=NUMBER...]`: prepare the installation, then supervise its processes."""

import signal
import sys


def run(arguments: list[str]) -> None:
    """Start the service. Print an error as one line, and no traceback on a stop by signal."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    # Imported after the signal handlers are set: the import takes a second.
    from pydantic import ValidationError  # noqa: PLC0415

    from deploy.service.errors import ServiceError  # noqa: PLC0415
    from deploy.service.start import main  # noqa: PLC0415
    from shared.cli.exits import error_text  # noqa: PLC0415
    from shared.cli.output import NAME  # noqa: PLC0415

    try:
        main(arguments)
    except ServiceError as error:
        sys.exit(str(error))
    except ValidationError as error:
        sys.exit(f"wrong settings, nothing was started: {error_text(error, NAME)}")
    except OSError as error:  # such as a full disk, or a folder of another user
        sys.exit(f"the service cannot start: {error_text(error, NAME)}")


def _leave(number: int, _frame: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    run(sys.argv[1:])
