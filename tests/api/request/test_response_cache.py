"""Answers that are remembered: as long as their version, and as many as there is room for."""

from api.request.response_cache import APIECE, ResponseCache


def test_an_answer_is_given_for_its_version_alone() -> None:
    answers = ResponseCache(10 * APIECE)
    answers.keep("a", "1", b"one")
    assert (answers.find("a", "1"), answers.find("a", "2"), answers.find("b", "1")) == (b"one", None, None)
    answers.keep("a", "2", b"two")
    assert (answers.find("a", "1"), answers.find("a", "2")) == (None, b"two")


def test_answer_least_recently_asked_for_makes_room() -> None:
    answers = ResponseCache(2 * APIECE + 20)
    for key in "ab":
        answers.keep(key, "1", b"x" * 10)
    assert answers.find("a", "1")
    answers.keep("c", "1", b"x" * 10)
    assert [bool(answers.find(key, "1")) for key in "abc"] == [True, False, True]


def test_an_answer_that_is_replaced_leaves_its_room() -> None:
    answers = ResponseCache(2 * APIECE + 20)
    for version in range(100):
        answers.keep("a", str(version), b"x" * 10)
        answers.keep("b", str(version), b"x" * 10)
    assert answers.find("a", "99")
    assert answers.find("b", "99")


def test_answer_larger_than_all_the_room_is_not_kept() -> None:
    answers = ResponseCache(0)
    answers.keep("a", "1", b"")
    assert answers.find("a", "1") is None
