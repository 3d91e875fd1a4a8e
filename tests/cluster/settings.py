"""Settings of machines, and images of their engines."""

from tests.cluster.data import Data
from tests.cluster.machines import Machine
from tests.services.engine import SANDBOX_IMAGE, TINY_IMAGE

IMAGES = ("agent-workspace/base:trixie", SANDBOX_IMAGE, TINY_IMAGE)
# Other names of the same images, under which the service of no commit builds an image by itself.
OWN_SANDBOX_IMAGE, LOAD_IMAGE = "cluster/sandbox:1", "cluster/tiny:1"
LOAD_SPEC = ("--default", "--env", "TINY_CONVERSES=1", "--env", "TINY_REPORTS=1", "--disk", "64M")


def settings_of(machine: Machine, data: Data) -> list[str]:
    """The var/env of a machine with an API."""
    return [
        f"AW_DATABASE_URL={data.database}",
        f"AW_REDIS_URL={data.broker}",
        f"AW_HOST={machine.address}",
        f"AW_NODE_ADDRESS={machine.address}",
    ]


def tag_images(machine: Machine) -> None:
    """Tag the images on a machine with their other names."""
    machine.engine.docker("tag", SANDBOX_IMAGE, OWN_SANDBOX_IMAGE)
    machine.engine.docker("tag", TINY_IMAGE, LOAD_IMAGE)
