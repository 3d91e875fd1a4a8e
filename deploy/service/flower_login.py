"""Flower's user and password.

The password is in a file of the var directory: arguments and environments of processes are visible to other programs.
"""

import secrets
from pathlib import Path

from shared.private_files import create_file
from shared.settings import Settings


def password_file(settings: Settings) -> Path:
    """The file of the password, for the service's user only."""
    return settings.var_dir / "flower.password"


def read_password(settings: Settings) -> str:
    """The password, which is generated on the first call."""
    file = password_file(settings)
    if not file.exists():
        create_file(file, secrets.token_urlsafe(24))
    return file.read_text().strip()
