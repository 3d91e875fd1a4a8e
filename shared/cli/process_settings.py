"""The settings of a process of the service. A wrong one ends the process with the name of its variable, in one line."""

import sys
from typing import TypeVar

from pydantic import ValidationError

from shared.env_file import FileSettings

Kind = TypeVar("Kind", bound=FileSettings)


def read_settings(kind: type[Kind], process: str) -> Kind:
    """The settings in force.

    Raises:
        SystemExit: one of them is wrong, or their file cannot be read.
    """
    try:
        return kind()
    except (ValidationError, OSError) as error:
        from shared.cli.exits import error_text
        from shared.cli.output import NAME

        sys.exit(f"{process}: wrong settings: {error_text(error, NAME)}")
