"""The installation that the environment names. Its modules are slow to import: a command imports them when it runs."""

from typing import TYPE_CHECKING

from shared.settings import Settings

if TYPE_CHECKING:
    from shared.cli.local.installation import LocalInstallation


def installation() -> "LocalInstallation":
    """The installation, for one command."""
    from shared.cli.local.installation import LocalInstallation

    return LocalInstallation(Settings())
