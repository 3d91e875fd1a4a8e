"""What `specs add` and `specs set` check before they change specs."""

from collections.abc import Mapping
from typing import Any

from sqlmodel import Session

from shared.cli.local.installation import LocalInstallation
from shared.errors import Invalid
from shared.models import SandboxSpec
from shared.nodes import registry as node_registry
from shared.sandboxes import specs


def add_spec(session: Session, image: str, *, default: bool, **columns: Any) -> None:
    """Add a spec as the default one, or as the last.

    Raises:
        Conflict: a spec for that image exists.
        Invalid: the image's reference or the working directory is malformed, or no node has the spec's runtime.
    """
    if not image.isprintable() or not 1 <= len(image) <= 256 or " " in image:
        raise Invalid(f"invalid image {image[:256]!r}: use 1 to 256 printable characters without spaces")
    working_dir = columns.get("working_dir", "/")
    if not working_dir.startswith("/") or not working_dir.isprintable():
        raise Invalid(f"invalid working directory {working_dir!r}: use an absolute path, such as /workspace/project")
    _require_runtime(session, columns.get("runtime"))
    specs.add_spec(session, SandboxSpec(id=image, position=0, **columns), default=default)


def change_spec(
    here: LocalInstallation,
    image: str,
    columns: Mapping[str, Any],
    durations: Mapping[str, int | None],
    *,
    default: bool,
    delete: bool,
) -> int:
    """Change a spec. Changed deadlines apply to its existing sandboxes, too.

    Args:
        columns: other columns to change, by name.
        durations: deadlines to change, in seconds, by column name; None: never.
        default: make it the default spec.
        delete: change the deadlines even if that deletes sandboxes immediately.

    Returns:
        The number of sandboxes that would be deleted immediately. Nothing was changed if there are any, unless
        `delete` is true: then it is 0.

    Raises:
        NotFound: there is no such spec.
    """
    try:
        with here.writing() as session:
            overdue = specs.set_deadlines(session, image, durations) if durations else 0
            if overdue and not delete:
                raise _DeletesSandboxes(overdue)
            specs.change(session, image, columns)
            if default:
                specs.make_default(session, image)
    except _DeletesSandboxes as refused:
        return refused.sandboxes
    return 0


class _DeletesSandboxes(Exception):
    """Raised to roll back a change of a spec that would delete `sandboxes` sandboxes."""

    def __init__(self, sandboxes: int) -> None:
        super().__init__(sandboxes)
        self.sandboxes = sandboxes


def _require_runtime(session: Session, runtime: str | None) -> None:
    """Check that the engine of a node has the runtime, if any node has reported its runtimes."""
    reported = [node.runtimes for node in node_registry.list_nodes(session) if node.runtimes is not None]
    found = sorted({name for names in reported for name in names})
    if runtime and reported and runtime not in found:
        raise Invalid(f"no node's engine has the runtime {runtime!r}; they have {', '.join(found)}")
