"""The installation that the environment names. What opens a database is slow to import, so commands do it."""

from typing import TYPE_CHECKING

from shared.settings import Settings

if TYPE_CHECKING:
    from shared.cli.local.installation import LocalInstallation


def installation() -> "LocalInstallation":
    """The installation, for one command."""
    from shared.cli.local.installation import LocalInstallation

    return LocalInstallation(Settings())
