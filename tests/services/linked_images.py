"""Images of private engines that link the layers of the machine's engine, to avoid a copy of a gigabyte for each."""

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
    """An image of the machine's engine: its id and its layers' ids from the lowest, without `sha256:`."""

    name: str
    id: str
    layers: Sequence[str]


def link_images(data: Path, names: Sequence[str]) -> bool:
    """Add images of the machine's engine to the `data` of an engine that has not run yet; return False if it cannot.

    The layers are linked: engines never write to them, and remove only the link. The descriptions of the images are
    copied. Other images, which may be built and removed concurrently, are not read.
    """
    source = _data_of_the_machine()
    if source is None:
        return False
    images = [_inspect(name) for name in names]
    links = data / "overlay2" / "l"
    links.mkdir(parents=True)
    for image in images:
        _copy(source, data, STORE / "imagedb" / "content" / "sha256" / image.id)
    for layer in {layer for image in images for layer in image.layers}:
        place = STORE / "layerdb" / "sha256" / layer
        _copy(source, data, place)
        _link(source / "overlay2" / (source / place / "cache-id").read_text(), links)
    (data / STORE / "repositories.json").write_text(json.dumps({"Repositories": _repositories(images)}))
    return True


def _data_of_the_machine() -> Path | None:
    """The data directory of the machine's engine, if it is local and uses overlay2."""
    command = ["docker", "info", "--format", "{{.Driver}} {{.DockerRootDir}}"]
    driver, _, root = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip().partition(" ")
    return Path(root) if driver == "overlay2" and (Path(root) / STORE).is_dir() else None


def _inspect(name: str) -> _Image:
    command = ["docker", "image", "inspect", name]
    [found] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return _Image(name, found["Id"].removeprefix("sha256:"), [*_chain(found["RootFS"]["Layers"])])


def _chain(contents: Sequence[str]) -> Iterator[str]:
    """The ids of layers, each of which includes those below it (OCI image specification, "ChainID")."""
    for chain in itertools.accumulate(
        contents, lambda below, content: f"sha256:{hashlib.sha256(f'{below} {content}'.encode()).hexdigest()}"
    ):
        yield chain.removeprefix("sha256:")


def _repositories(images: Sequence[_Image]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for image in images:
        found.setdefault(image.name.rpartition(":")[0], {})[image.name] = f"sha256:{image.id}"
    return found


def _copy(source: Path, data: Path, place: Path) -> None:
    original, target = source / place, data / place
    target.parent.mkdir(parents=True, exist_ok=True)
    if original.is_dir():
        shutil.copytree(original, target)
    else:
        shutil.copy2(original, target)


def _link(layer: Path, links: Path) -> None:
    (links.parent / layer.name).symlink_to(layer)
    (links / (layer / "link").read_text()).symlink_to(Path("..", layer.name, "diff"))
