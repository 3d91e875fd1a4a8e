"""Measuring of JSON before it is parsed."""

import json

import pytest

from api import json_text
from api.json_text import LongNumber, TooManyValues, check_size, check_tokens, load, split_list, split_object
from api.middleware.request_body import find_error

LISTS = [
    "[]",
    " [ ] ",
    "[1]",
    '[1, "a,b", [2, [3]], {"c": [4, "]"], "d": {}}]',
    r'["\"", "\\", "\\\"]", "[,]"]',
    '["é", "🦊,"]',
    "\n[ {} ,\t{} ]\n",
]
NOT_LISTS = ["", " ", "1", "{}", '"[1]"', "[", "[1", "[1}", "[1] 2", "x[1]", "[[1]", '["', '["a]', "]", "[1]]", "{[1]}"]
NOT_JSON = ["[1,]", "[,]", "[,1]", "[1,,2]", "[x]", "[1}]", '["a" "b"]']


@pytest.mark.parametrize("text", LISTS)
def test_split_list_yields_its_elements(text: str) -> None:
    assert [json.loads(element) for element in split_list(text.encode())] == json.loads(text)


@pytest.mark.parametrize("chunk_bytes", [2, 3, 5, 7])
@pytest.mark.parametrize("text", LISTS)
def test_chunk_size_does_not_affect_the_result(text: str, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "CHUNK_BYTES", chunk_bytes)
    assert [json.loads(element) for element in split_list(text.encode())] == json.loads(text)


@pytest.mark.parametrize("text", NOT_LISTS)
def test_other_text_than_a_list_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="a list is required"):
        list(split_list(text.encode()))


@pytest.mark.parametrize("text", NOT_JSON)
def test_elements_of_malformed_json_are_malformed(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Extra|list is required"):
        [json.loads(element) for element in split_list(text.encode())]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32-be"])
def test_values_in_other_encodings_are_not_read(encoding: str) -> None:
    """The second byte of U+2200 in UTF-16 is that of a quote, so the following characters would count as a text."""
    with pytest.raises(ValueError, match="not UTF-8"):
        load(('["\N{FOR ALL}"' + ",[]" * 30_000 + "]").encode(encoding))


def test_values_within_texts_are_not_counted() -> None:
    text = rb'{"a": [1, 2, "3,[{\",4"], "b": {}}'
    check_size(text, 6)
    with pytest.raises(TooManyValues, match="more than 5 values"):
        check_size(text, 5)


def test_lists_and_objects_have_their_own_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "MAX_CONTAINERS", 3)
    check_size(b'[{"a": []}, 1, 2, 3]')
    with pytest.raises(TooManyValues, match="more than 3 lists and objects"):
        check_size(b'[{"a": []}, {}]')


def test_lists_and_objects_of_a_split_list_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "MAX_SPLIT_CONTAINERS", 4)
    assert len(list(split_list(b'[[], {}, [], "[[[["]'))) == 4
    with pytest.raises(TooManyValues, match="more than 4 lists and objects"):
        list(split_list(b"[[], {}, [], []]"))


@pytest.mark.parametrize(
    "text", [b"%b", b"[%b]", b" [ %b ]", b'{"a":%b}', b'{"a" : -%b}', b'{"a": "b", "c":\n%b', b"[1,%b", b'[%b"a"]']
)
@pytest.mark.parametrize("chunk_bytes", [2, 65_536])
def test_digits_of_a_number_have_a_limit(text: bytes, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "CHUNK_BYTES", chunk_bytes)
    check_size(text % (b"7" * 400))
    with pytest.raises(LongNumber, match="more than 400 digits"):
        check_size(text % (b"7" * 401))


@pytest.mark.parametrize("text", [b'["%b"]', b'{"%b": 1}', rb'["\n%b"]', rb'["\",%b,"]', b"[0.%b]"])
def test_digits_in_texts_and_after_a_point_have_no_limit(text: bytes) -> None:
    long = text % (b"7" * 5_000)
    assert json.loads(long)
    assert find_error(long) is None


def test_split_object_yields_its_properties() -> None:
    text = rb'{"a": [1, {"b": 2}], "c,}": "\"}", "d": {}}'
    assert list(split_object(text)) == [b'"a": [1, {"b": 2}]', rb' "c,}": "\"}"', b' "d": {}']
    for wrong in (b"[1]", b'{"a": 1', b"1"):
        with pytest.raises(ValueError, match="an object is required"):
            list(split_object(wrong))


def test_tokens_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_text, "MAX_TOKENS", 10)
    monkeypatch.setattr(json_text, "MAX_SPLIT_TOKENS", 50)
    load(b"[1,2,3,4,5,6,7]")
    for text in (b"[" + b"1," * 10 + b"1]", b'"' + b"\\n" * 10 + b'"'):
        with pytest.raises(TooManyValues):
            load(text)
    assert len(list(split_list(b"[" + b"[1,2]," * 10 + b"1]"))) == 11
    with pytest.raises(TooManyValues):
        list(split_list(b"[" + b"[1,2]," * 20 + b"1]"))


@pytest.mark.parametrize("chunk_bytes", [2, 65_536])
def test_backslashes_and_characters_in_texts_are_counted_as_tokens(
    chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_text, "CHUNK_BYTES", chunk_bytes)
    text = rb'{"a": ["b,\\n", 1, true, null]}'
    check_tokens(text, 14)
    with pytest.raises(TooManyValues, match="more than 13 brackets"):
        check_tokens(text, 13)
