"""The attribution of containers and volumes to the installations that share an engine."""

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
    """The containers and volumes of one installation.

    Args:
        strays: a message for each container or volume without an installation's label or with wrong labels. Each is a
            violation: a search by label must find everything that the service creates.
    """

    containers: Sequence[Container]
    volumes: Sequence[Volume]
    strays: Sequence[str]


def attribute(
    held: Holdings, installation: str, sandbox_ids: Collection[str], *, neighbours: Collection[str] = ()
) -> Attributed:
    """Find one installation's containers and volumes, by their labels or by the names of its sandboxes.

    Args:
        neighbours: the labels of the other installations that use or have used the engine.
    """
    names = frozenset(map(sandbox_name, sandbox_ids))
    containers = [item for item in held.containers if _is_own(item, installation, names)]
    volumes = [item for item in held.volumes if _is_own(item, installation, names)]
    strays = [
        *_unattributed("container", held.containers, installation, names, neighbours),
        *_unattributed("volume", held.volumes, installation, names, neighbours),
    ]
    return Attributed(containers, volumes, strays)


def _is_own(item: Container | Volume, installation: str, names: Collection[str]) -> bool:
    return item.labels.get(INSTALLATION_LABEL) == installation or item.name in names


def _unattributed(
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
            yield f"{kind} {item.name} has the name of a sandbox of {installation} and the label of {label}"
        elif label == installation and item.name != sandbox_name(sandbox_id or ""):
            yield f"{kind} {item.name} has the label of sandbox {sandbox_id}"
