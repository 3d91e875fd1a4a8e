"""Images for an engine of the tests' own, without a copy: a gigabyte written for each would slow all others down."""

import shutil
import subprocess
from pathlib import Path

# Containers, and what is being downloaded: the lender's alone.
NOT_LENT = ("mounts", "tmp")


def borrow_images(data: Path) -> bool:
    """Let an engine that has not run yet find the machine's images in its `data`; False: they can't be lent.

    Engines never write to an image's layers, and remove a link where one is. What each image is, is copied.
    """
    lender = _data_of_the_machine()
    if lender is None:
        return False
    shutil.copytree(lender / "image", data / "image", ignore=shutil.ignore_patterns(*NOT_LENT))
    links = data / "overlay2" / "l"
    links.mkdir(parents=True)
    for layer in (lender / "image/overlay2/layerdb/sha256").glob("*/cache-id"):
        _lend(lender / "overlay2" / layer.read_text(), links)
    return True


def _data_of_the_machine() -> Path | None:
    """Where the machine's own engine keeps images, if it is on this machine and keeps them as overlay2 does."""
    command = ["docker", "info", "--format", "{{.Driver}} {{.DockerRootDir}}"]
    driver, _, root = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().partition(" ")
    images = Path(root) / "image" / "overlay2"
    return Path(root) if driver == "overlay2" and images.is_dir() else None


def _lend(layer: Path, links: Path) -> None:
    (links.parent / layer.name).symlink_to(layer)
    (links / (layer / "link").read_text()).symlink_to(Path("..", layer.name, "diff"))
