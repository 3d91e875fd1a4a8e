"""Documents are serialized without long blocking calls."""

import json
from typing import Any

import pytest

from shared import json_documents
from shared.json_documents import count_bytes, shorten, write_document, write_text

DOCUMENTS: list[Any] = [
    None,
    {"a": [1, 2.5, True, None], "ü": {"b": "\ud83e \0 🦊"}, "c": [], "d": {}},
    [[1, [2, [3]]], (4, 5)],
]


@pytest.mark.parametrize("document", DOCUMENTS)
@pytest.mark.parametrize("many", [1, 20_000])
def test_documents_are_written_compactly_in_ascii_or_not(
    document: Any, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_documents, "MAX_VALUES_PER_CALL", many)
    expected = json.dumps(document, separators=(",", ":"))
    assert write_document(document) == expected
    assert count_bytes(document) == len(expected)
    shown = json.dumps(document, separators=(",", ":"), ensure_ascii=False)
    assert write_document(document, ascii_only=False) == shown


@pytest.mark.parametrize("document", [[0.1] * 20_001, {"a": [[{"b": 1}]] * 7_000}])
def test_document_of_many_values_is_not_written_in_one_call(document: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = json.JSONEncoder(separators=(",", ":"))
    monkeypatch.setattr(encoder, "encode", lambda _: pytest.fail("it was written in one call"))
    monkeypatch.setattr(json_documents, "_STORED", encoder)
    assert json.loads(write_document(document)) == document


@pytest.mark.parametrize("text", ["", "plain", '\0\n"\\' * 7, "é🦊" * 9, "\u2028\x7f"])
@pytest.mark.parametrize("step", [1, 2, 3, 65_536])
def test_text_in_pieces_is_the_text_as_json(text: str, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_documents, "CHUNK_CHARACTERS", step)
    pieces = list(write_text(text))
    assert b"".join(pieces) == json.dumps(text, ensure_ascii=False).encode()
    assert max(map(len, pieces)) <= 6 * step


def test_document_that_no_cut_makes_small_enough_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Any] = []

    def count(document: Any) -> int:
        counted.append(document)
        return count_bytes(document)

    monkeypatch.setattr(json_documents, "count_bytes", count)
    assert shorten({"id": "e", "floats": [0.5] * 1_000}, 1_000, otherwise={"id": "e"}) == {"id": "e"}
    assert len(counted) == 2
