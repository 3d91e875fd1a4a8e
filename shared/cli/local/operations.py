"""Operations on the installation that the environment names. Their modules are slow to import, so commands do it."""

from typing import TYPE_CHECKING

from shared.settings import Settings

if TYPE_CHECKING:
    from shared.cli.local.installation import Installation
    from shared.cli.local.model_operations import ModelOperations
    from shared.cli.local.node_operations import NodeOperations
    from shared.cli.local.spec_operations import SpecOperations
    from shared.cli.local.status_operations import StatusOperations
    from shared.cli.local.user_operations import UserOperations


def installation() -> "Installation":
    """The installation itself."""
    from shared.cli.local.installation import Installation  # noqa: PLC0415 - slow to import

    return Installation(Settings())


def user_operations() -> "UserOperations":
    """Operations on its users."""
    from shared.cli.local.user_operations import UserOperations  # noqa: PLC0415 - slow to import

    return UserOperations(Settings())


def spec_operations() -> "SpecOperations":
    """Operations on its specs."""
    from shared.cli.local.spec_operations import SpecOperations  # noqa: PLC0415 - slow to import

    return SpecOperations(Settings())


def node_operations() -> "NodeOperations":
    """Operations on its nodes."""
    from shared.cli.local.node_operations import NodeOperations  # noqa: PLC0415 - slow to import

    return NodeOperations(Settings())


def model_operations() -> "ModelOperations":
    """Operations on the model servers that sandboxes may reach."""
    from shared.cli.local.model_operations import ModelOperations  # noqa: PLC0415 - slow to import

    return ModelOperations(Settings())


def status_operations() -> "StatusOperations":
    """Reading its state."""
    from shared.cli.local.status_operations import StatusOperations  # noqa: PLC0415 - slow to import

    return StatusOperations(Settings())
