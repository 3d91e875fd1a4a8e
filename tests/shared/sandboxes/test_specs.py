"""Sandbox specs: their order, and their removal."""

import pytest

from shared.db.database import Database
from shared.errors import Conflict, NotFound
from shared.models import NodeSpecBackoff, SandboxSpec
from shared.sandboxes import specs
from tests.factories import ApiUser, make_node, make_sandbox


def add(database: Database, image: str, *, default: bool = False) -> None:
    with database.transaction() as session:
        specs.add_spec(session, SandboxSpec(id=image, position=0), default=default)


def listed(database: Database) -> list[str]:
    with database.reading() as session:
        return [spec.id for spec in specs.list_specs(session)]


def test_spec_is_added_last_or_first(database: Database) -> None:
    for image in ("b", "a"):
        add(database, image)
    add(database, "c", default=True)
    add(database, "d", default=True)
    assert listed(database) == ["d", "c", "b", "a"]
    with database.reading() as session:
        assert specs.get_spec(session, None).id == "d"


def test_second_spec_of_an_image_conflicts(database: Database) -> None:
    add(database, "a")
    with pytest.raises(Conflict):
        add(database, "a", default=True)
    assert listed(database) == ["a"]


def test_unknown_spec_is_not_found(database: Database) -> None:
    with database.reading() as session:
        for spec_id in (None, "a"):
            with pytest.raises(NotFound):
                specs.get_spec(session, spec_id)
        assert specs.get_specs(session, ["a"]) == [None]


def test_spec_with_sandboxes_cannot_be_removed(database: Database, user: ApiUser) -> None:
    make_sandbox(database, user, spec_id="used")
    add(database, "unused")
    with pytest.raises(Conflict), database.transaction() as session:
        specs.remove_spec(session, "used")
    with database.transaction() as session:
        specs.remove_spec(session, "unused")
    assert listed(database) == ["used"]
    with pytest.raises(NotFound), database.transaction() as session:
        specs.remove_spec(session, "unused")


def test_spec_is_removed_with_the_breakers_of_its_former_sandboxes(database: Database) -> None:
    add(database, "unused")
    node = make_node(database)
    with database.transaction() as session:
        session.add(NodeSpecBackoff(node_id=node.id, spec_id="unused", failures=1))
    with database.transaction() as session:
        specs.remove_spec(session, "unused")
    assert listed(database) == []


def test_pages_of_specs_are_in_order(database: Database) -> None:
    for image in ("a", "b", "c"):
        add(database, image, default=True)
    with database.reading() as session:
        first = specs.search_specs(session, None, 2)
        second = specs.search_specs(session, first.next_page_id, 2)
    assert [spec.id for spec in first.items + second.items] == ["c", "b", "a"]
    assert second.next_page_id is None


def test_spec_is_read_as_it_was_stored(database: Database) -> None:
    with database.transaction() as session:
        spec = SandboxSpec(id="a", position=0, command=["x", "y z"], env={"K": "ü\x00"}, memory_bytes=2**40)
        specs.add_spec(session, spec)
    with database.reading() as session:
        found = specs.get_spec(session, "a")
    assert (found.command, found.env, found.memory_bytes) == (["x", "y z"], {"K": "ü\x00"}, 2**40)
    assert found.ports == {"AGENT_SERVER": 8000}
