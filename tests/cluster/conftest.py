"""The transcripts of the tests of clusters, and the package that they install."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.machines import Machine, running_machines
from tests.cluster.service import Installed, install
from tests.cluster.settings import IMAGES, tag_images
from tests.cluster.transcript import Transcript
from tests.services.directories import REPOSITORY, short_directory

LOG = REPOSITORY / "var" / "log" / "cluster"


@pytest.fixture
def transcript(request: pytest.FixtureRequest) -> Iterator[Transcript]:
    """The commands and their output, written to a file with the test's name, beside the processes' logs."""
    found = Transcript()
    yield found
    found.write(LOG / f"{request.node.name}.txt")


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    """Two running machines with the images of the load tests."""
    with running_machines(IMAGES) as found:
        for machine in found:
            tag_images(machine)
        yield found


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder outside the machines."""
    with short_directory("installed") as folder:
        yield folder


@pytest.fixture
def installed(folder: Path, transcript: Transcript) -> Installed:
    """This tree's package, installed for all machines."""
    return install(folder, transcript)
