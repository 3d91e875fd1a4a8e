"""JSON that is measured before it is parsed."""

import json

import pytest

from api import json_texts
from api.json_texts import TooManyValues, check_size, load, split_list

LISTS = [
    "[]",
    " [ ] ",
    "[1]",
    '[1, "a,b", [2, [3]], {"c": [4, "]"], "d": {}}]',
    r'["\"", "\\", "\\\"]", "[,]"]',
    '["é", "🦊,"]',
    "\n[ {} ,\t{} ]\n",
]
NO_LISTS = ["", " ", "1", "{}", '"[1]"', "[", "[1", "[1}", "[1] 2", "x[1]", "[[1]", '["', '["a]', "]", "[1]]", "{[1]}"]
NO_JSON = ["[1,]", "[,]", "[,1]", "[1,,2]", "[x]", "[1}]", '["a" "b"]']


@pytest.mark.parametrize("text", LISTS)
def test_elements_are_those_of_the_list(text: str) -> None:
    assert [json.loads(element) for element in split_list(text.encode())] == json.loads(text)


@pytest.mark.parametrize("step", [2, 3, 5, 7])
@pytest.mark.parametrize("text", LISTS)
def test_steps_of_the_search_change_nothing(text: str, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_texts, "STEP_BYTES", step)
    assert [json.loads(element) for element in split_list(text.encode())] == json.loads(text)


@pytest.mark.parametrize("text", NO_LISTS)
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="a list is needed"):
        list(split_list(text.encode()))


@pytest.mark.parametrize("text", NO_JSON)
def test_elements_of_what_is_no_json_are_none_either(text: str) -> None:
    with pytest.raises(ValueError, match=r"Expecting|Extra|list is needed"):
        [json.loads(element) for element in split_list(text.encode())]


def test_values_are_counted_outside_of_texts() -> None:
    text = rb'{"a": [1, 2, "3,[{\",4"], "b": {}}'
    check_size(text, 6)
    with pytest.raises(TooManyValues, match="more than 5 values"):
        check_size(text, 5)


def test_tokens_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_texts, "MAX_TOKENS", 10)
    monkeypatch.setattr(json_texts, "MAX_LISTED_TOKENS", 50)
    load(b"[1,2,3,4,5,6,7]")
    for text in (b"[" + b"1," * 10 + b"1]", b'"' + b"\\n" * 10 + b'"'):
        with pytest.raises(TooManyValues):
            load(text)
    with pytest.raises(TooManyValues):
        list(split_list(b"[[" + b"1," * 10 + b"1]]"))
    assert len(list(split_list(b"[" + b"[1,2]," * 10 + b"1]"))) == 11
    with pytest.raises(TooManyValues):
        list(split_list(b"[" + b"[1,2]," * 20 + b"1]"))
