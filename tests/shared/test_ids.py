"""Ids: one internal form, both forms in requests."""

from uuid import UUID, uuid4

import pytest

from shared.errors import Invalid
from shared.ids import new_id, parse_id, parse_ids

HEXED = "25e2a1b3c4d5e6f7a8b9c0d1e2f3a4b5"
FULL_WIDTH = str.maketrans("0123456789", "０１２３４５６７８９")
ODD = [
    HEXED.translate(FULL_WIDTH),
    f"{{{HEXED}}}",
    f"urn:uuid:{HEXED}",
    f"25_2{HEXED[4:]}",
    f"+{HEXED[1:]}",
    f" {HEXED[1:]}",
    f"{HEXED}\n",
    f"-{HEXED}",
    "-".join(HEXED),
]
BAD = ["", "x", "0" * 31, "0" * 33, "g" * 32, "\x00" * 32, "1" * 10_000, *ODD]


def test_new_id_is_32_hex_digits() -> None:
    row_id = new_id()
    assert row_id == UUID(row_id).hex
    assert row_id != new_id()


def test_uuid_with_and_without_dashes_is_the_same_id() -> None:
    uuid = uuid4()
    assert {parse_id(text) for text in (uuid.hex, str(uuid), str(uuid).upper())} == {uuid.hex}


@pytest.mark.parametrize("text", BAD)
def test_other_text_is_rejected_and_shown_truncated(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        parse_id(text)
    assert len(str(caught.value)) < 350


def test_ids_stay_in_order() -> None:
    uuids = [uuid4() for _ in range(5)]
    assert parse_ids([str(uuid) for uuid in uuids]) == [uuid.hex for uuid in uuids]
    assert parse_ids([]) == []


def test_malformed_ids_are_all_named_in_one_error() -> None:
    with pytest.raises(Invalid, match=r"'x'.*'y'"):
        parse_ids(["x", new_id(), "y"])


def test_too_many_ids_are_rejected_before_parsing() -> None:
    with pytest.raises(Invalid, match="at most 100 ids"):
        parse_ids(["x"] * 101)
