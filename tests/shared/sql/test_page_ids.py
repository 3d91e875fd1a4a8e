"""Page ids of all kinds of lists: the position that was encoded, or Invalid."""

import json
from base64 import urlsafe_b64encode
from typing import Any

import pytest

from shared.errors import Invalid
from shared.sql import page_ids
from tests.structure.test_structure import PARTS, files_of, name

LIST = ["conversation.created_at", True]


def encoded(document: Any) -> str:
    return urlsafe_b64encode(json.dumps(document).encode()).decode()


@pytest.mark.parametrize("position", [["a name"], [7, "ü\ud800"], [None, [1, 2]], ["~~~", "???>>>"]])
def test_encoded_position_is_decoded_unchanged(position: list[Any]) -> None:
    assert page_ids.decode(page_ids.encode(LIST, *position), LIST, len(position)) == position


def test_ids_of_former_versions_stay_valid() -> None:
    former = encoded([*LIST, "2026-11-20T12:00:00+00:00", "0" * 32])
    for page_id in (former, former.rstrip("=")):
        assert page_ids.decode(page_id, LIST, 2) == ["2026-11-20T12:00:00+00:00", "0" * 32]


@pytest.mark.parametrize(
    "page_id",
    [
        "",
        "no id",
        "é",
        "a" * 5001,
        encoded({"of": LIST}),
        encoded("[" * 100_000),
        encoded(LIST),
        encoded([*LIST, 1, 2]),
        encoded(["conversation.created_at", False, 1]),
        encoded(["conversation.updated_at", True, 1]),
        encoded([*LIST, 1]) + "!",
        "\n" + encoded([*LIST, 1]),
        urlsafe_b64encode(b"[" * 100_000).decode(),
        urlsafe_b64encode(b"\xff").decode(),
    ],
)
def test_id_that_the_list_did_not_issue_is_invalid(page_id: str) -> None:
    with pytest.raises(Invalid, match="page_id"):
        page_ids.decode(page_id, LIST, 1)


def test_no_other_module_decodes_page_ids() -> None:
    texts = {name(path): path.read_text() for part in PARTS for path in files_of(part)}
    decoding = {file for file, text in texts.items() if "b64decode" in text}
    # The other two decode encrypted values, and the bodies of messages.
    assert decoding == {"shared/sql/page_ids.py", "shared/crypto.py", "shared/queue/envelopes.py"}
