"""Images for the tests' private engines, without a copy: writing a gigabyte for each would slow all others down."""

import hashlib
import itertools
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

STORE = Path("image", "overlay2")


@dataclass(frozen=True)
class _Image:
    """An image of the lender: its id, and the ids of its layers from the lowest to the highest, without `sha256:`."""

    name: str
    id: str
    layers: Sequence[str]


def borrow_images(data: Path, names: Sequence[str]) -> bool:
    """Give an engine that has not run yet these images of the machine, in its `data`; False: they can't be lent.

    Engines never write to an image's layers, and remove a link where one is. What each image is, is copied. Nothing of
    other images is read: they may be made and removed meanwhile.
    """
    lender = _data_of_the_machine()
    if lender is None:
        return False
    images = [_inspect(name) for name in names]
    links = data / "overlay2" / "l"
    links.mkdir(parents=True)
    for image in images:
        _copy(lender, data, STORE / "imagedb" / "content" / "sha256" / image.id)
    for layer in {layer for image in images for layer in image.layers}:
        place = STORE / "layerdb" / "sha256" / layer
        _copy(lender, data, place)
        _lend(lender / "overlay2" / (lender / place / "cache-id").read_text(), links)
    (data / STORE / "repositories.json").write_text(json.dumps({"Repositories": _repositories(images)}))
    return True


def _data_of_the_machine() -> Path | None:
    """Where the machine's own engine keeps images, if it is on this machine and keeps them as overlay2 does."""
    command = ["docker", "info", "--format", "{{.Driver}} {{.DockerRootDir}}"]
    driver, _, root = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().partition(" ")
    return Path(root) if driver == "overlay2" and (Path(root) / STORE).is_dir() else None


def _inspect(name: str) -> _Image:
    command = ["docker", "image", "inspect", name]
    [found] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return _Image(name, found["Id"].removeprefix("sha256:"), [*_chain(found["RootFS"]["Layers"])])


def _chain(contents: Sequence[str]) -> Iterator[str]:
    """The ids of layers, each of which names what is below it too (OCI image specification, "ChainID")."""
    for chain in itertools.accumulate(
        contents, lambda below, content: f"sha256:{hashlib.sha256(f'{below} {content}'.encode()).hexdigest()}"
    ):
        yield chain.removeprefix("sha256:")


def _repositories(images: Sequence[_Image]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for image in images:
        found.setdefault(image.name.rpartition(":")[0], {})[image.name] = f"sha256:{image.id}"
    return found


def _copy(lender: Path, data: Path, place: Path) -> None:
    source, target = lender / place, data / place
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy2(source, target)


def _lend(layer: Path, links: Path) -> None:
    (links.parent / layer.name).symlink_to(layer)
    (links / (layer / "link").read_text()).symlink_to(Path("..", layer.name, "diff"))
