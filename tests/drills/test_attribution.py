"""Labels attribute everything on a shared engine to an installation; what they do not attribute is a violation."""

import pytest

from tests.drills.attribution import Attributed, attribute
from tests.drills.engine_listing import INSTALLATION_LABEL, SANDBOX_LABEL, Container, Holdings, Volume, list_holdings

MINE, THEIRS = "test-lane-1", "test-lane-2"


def labels(installation: str = MINE, sandbox_id: str = "s") -> dict[str, str]:
    return {INSTALLATION_LABEL: installation, SANDBOX_LABEL: sandbox_id}


def found(*items: Container | Volume) -> Attributed:
    containers = tuple(item for item in items if isinstance(item, Container))
    volumes = tuple(item for item in items if isinstance(item, Volume))
    return attribute(Holdings(containers, volumes), MINE, ["s"], neighbours={THEIRS})


def test_labelled_container_and_volume_are_attributed_by_their_label() -> None:
    container, volume = Container("aw-s", "running", labels()), Volume("aw-s", labels())
    assert found(container, volume) == Attributed([container], [volume], [])


def test_container_that_no_row_owns_is_attributed_by_its_label() -> None:
    container = Container("aw-x", "running", labels(sandbox_id="x"))
    assert found(container) == Attributed([container], [], [])


def test_container_and_volume_of_another_installation_are_excluded() -> None:
    theirs = labels(THEIRS, "t")
    assert found(Container("aw-t", "running", theirs), Volume("aw-t", theirs)) == Attributed([], [], [])


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (Container("aw-s", "running"), "container aw-s has the label of no installation here: None"),
        (Volume("aw-s"), "volume aw-s has the label of no installation here: None"),
        (Container("unnamed", "exited"), "container unnamed has the label of no installation here: None"),
        (Volume("0123abcd"), "volume 0123abcd has the label of no installation here: None"),
        (Container("aw-s", "running", labels("other")), "container aw-s has the label of no installation here: other"),
        (
            Container("aw-s", "running", labels(THEIRS)),
            "container aw-s has the name of a sandbox of test-lane-1 and the label of test-lane-2",
        ),
        (Container("aw-s", "running", labels(sandbox_id="t")), "container aw-s has the label of sandbox t"),
        (Container("aw-s", "running", {INSTALLATION_LABEL: MINE}), "container aw-s has the label of sandbox None"),
    ],
)
def test_unattributed_container_is_a_violation(item: Container | Volume, words: str) -> None:
    assert found(item).strays == [words]


class Recorded:
    """The recorded outputs of an engine's command line, by the first words of the command."""

    def __init__(self, **responses: str) -> None:
        self._answers = responses
        self.requested: list[tuple[str, ...]] = []

    def docker(self, *arguments: str) -> str:
        self.requested.append(arguments)
        return self._answers[arguments[0]]


def test_holdings_are_listed_without_a_filter() -> None:
    engine = Recorded(ps=f"aw-s\trunning\t{MINE}\ts\nother\texited\t\t\n", volume="aw-s\t\t\n")
    held = list_holdings(engine)
    assert held.containers == (Container("aw-s", "running", labels()), Container("other", "exited"))
    assert held.volumes == (Volume("aw-s"),)
    assert not any(word.startswith("--filter") for requested in engine.requested for word in requested)


def test_inspected_states_replace_listed_states() -> None:
    engine = Recorded(ps=f"aw-s\trunning\t{MINE}\ts\n", volume="", inspect="/aw-s\texited\n")
    assert [item.state for item in list_holdings(engine, inspect=True).containers] == ["exited"]
