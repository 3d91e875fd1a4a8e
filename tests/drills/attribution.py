"""Whose the containers and volumes of an engine are, where several installations share it."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tests.drills.engine_listing import (
    INSTALLATION_LABEL,
    SANDBOX_LABEL,
    Container,
    Holdings,
    Volume,
    sandbox_name,
)


@dataclass(frozen=True)
class Attributed:
    """What is one installation's.

    Args:
        strays: what carries no installation's label, or lacks the labels that it must have, in words. Each is a
            violation: nothing that the service makes may escape a search by label.
    """

    containers: Sequence[Container]
    volumes: Sequence[Volume]
    strays: Sequence[str]


def attribute(
    held: Holdings, installation: str, sandbox_ids: Collection[str], *, neighbours: Collection[str] = ()
) -> Attributed:
    """Find one installation's containers and volumes: by their label, or by the name of one of its sandboxes.

    Args:
        neighbours: the labels of the other installations that use or have used the engine.
    """
    names = frozenset(map(sandbox_name, sandbox_ids))
    containers = [item for item in held.containers if _is_own(item, installation, names)]
    volumes = [item for item in held.volumes if _is_own(item, installation, names)]
    strays = [
        *_strays("container", held.containers, installation, names, neighbours),
        *_strays("volume", held.volumes, installation, names, neighbours),
    ]
    return Attributed(containers, volumes, strays)


def _is_own(item: Container | Volume, installation: str, names: Collection[str]) -> bool:
    return item.labels.get(INSTALLATION_LABEL) == installation or item.name in names


def _strays(
    kind: str,
    items: Iterable[Container | Volume],
    installation: str,
    names: Collection[str],
    neighbours: Collection[str],
) -> Iterator[str]:
    for item in items:
        label, sandbox_id = item.labels.get(INSTALLATION_LABEL), item.labels.get(SANDBOX_LABEL)
        if label not in {installation, *neighbours}:
            yield f"{kind} {item.name} has the label of no installation here: {label}"
        elif label != installation and item.name in names:
            yield f"{kind} {item.name} is named for a sandbox of {installation} and has the label of {label}"
        elif label == installation and item.name != sandbox_name(sandbox_id or ""):
            yield f"{kind} {item.name} has the label of sandbox {sandbox_id}"
