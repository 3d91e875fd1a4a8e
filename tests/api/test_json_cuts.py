"""Reduction of JSON that is too large to parse."""

import json
import re
from collections.abc import Iterator

import pytest

from api import json_cuts, json_text
from api.json_cuts import TooLong, cut_texts, reduce_object
from api.json_text import tokens


@pytest.fixture(autouse=True)
def _small_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_cuts, "CUTS", (200, 100, 20))
    monkeypatch.setattr(json_cuts, "CUT_TOLERANCE", 0)


def test_small_document_is_unchanged() -> None:
    text = json.dumps({"a": "x" * 1000}).encode()
    assert cut_texts(text, len(text)) == text
    assert reduce_object(text, len(text)) == text


def test_longest_texts_are_cut_first() -> None:
    text = json.dumps({"id": "e", "a": "x" * 1000, "b": ["y" * 150, {"c": "z" * 150}]}).encode()
    cut = json.loads(cut_texts(text, 700))
    assert cut["a"] == "x" * 200 + " … (800 bytes were left out)"
    assert {**cut, "a": None} == {**json.loads(text), "a": None}
    assert json.loads(cut_texts(text, 500))["b"][0] == "y" * 100 + " … (50 bytes were left out)"


@pytest.mark.parametrize("chunk_bytes", [7, 65_536])
@pytest.mark.parametrize("unit", ["é", "🦊", "\\\\", '\\"', "\\\\n", "\\n", "\\u00e9", "\\\\\\u00e9", "[,]"])
def test_no_character_and_no_escape_is_cut_in_two(unit: str, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "CHUNK_BYTES", chunk_bytes)
    for offset in range(13):
        written = "x" * offset + unit * 100
        whole = json.loads(f'"{written}"')
        [cut] = json.loads(cut_texts(f'["{written}"]'.encode(), 150))
        prefix, _, suffix = cut.partition(" … ")
        assert whole.startswith(prefix), offset
        assert suffix.endswith("bytes were left out)"), offset
        assert offset < len(prefix) < 110


def test_text_that_is_cut_to_the_shortest_length_says_how_much_is_missing() -> None:
    text = json.dumps({"a": "x" * 1000, "b": "y" * 150}).encode()
    cut = json.loads(cut_texts(text, 150))
    assert cut == {"a": "x" * 20 + " … (980 bytes were left out)", "b": "y" * 20 + " … (130 bytes were left out)"}


def test_document_is_searched_once_for_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    searches: list[bytes] = []

    def note(text: bytes) -> Iterator[re.Match[bytes]]:
        searches.append(text)
        return tokens(text)

    monkeypatch.setattr(json_cuts, "tokens", note)
    text = json.dumps(["x" * 300, *[1] * 500]).encode()
    with pytest.raises(TooLong):
        cut_texts(text, 300)
    assert searches == [text]


def test_document_of_short_texts_can_be_too_large() -> None:
    with pytest.raises(TooLong, match="more than 300 bytes"):
        cut_texts(json.dumps(["x" * 20] * 20).encode(), 300)


@pytest.mark.parametrize("bulk", [["x" * 20] * 200, {"a": [{}] * 150}, [["x" * 500] * 100, 1]])
def test_large_properties_are_removed_if_cuts_are_not_enough(bulk: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "MAX_CONTAINERS", 100)
    monkeypatch.setattr(json_cuts, "SMALL_PROPERTY_BYTES", 100)
    text = json.dumps({"id": "e", "bulk": bulk, "kind": "K", "tags": {"a": [1, 2]}}).encode()
    assert json.loads(reduce_object(text, 2_000)) == {"id": "e", "kind": "K", "tags": {"a": [1, 2]}}


@pytest.mark.parametrize("number", [b"1" * 500, b"[%b]" % (b"1" * 5_000), b'{"b": [-%b]}' % (b"1" * 500)], ids=len)
def test_properties_with_long_numbers_are_removed(number: bytes) -> None:
    text = b'{"id": "e", "a": %b, "kind": "K", "size": %b}' % (number, b"1" * 400)
    assert json.loads(reduce_object(text, 10_000)) == {"id": "e", "kind": "K", "size": int("1" * 400)}


def test_other_documents_are_rejected() -> None:
    with pytest.raises(ValueError, match="an object is required"):
        reduce_object(json.dumps(["x" * 20] * 20).encode(), 300)
