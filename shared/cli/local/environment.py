"""The installation that the environment names. What opens a database is slow to import, so commands do it."""

from typing import TYPE_CHECKING

from shared.settings import Settings

if TYPE_CHECKING:
    from shared.cli.local.installation import Installation


def installation() -> "Installation":
    """The installation, for one command."""
    from shared.cli.local.installation import Installation

    return Installation(Settings())
