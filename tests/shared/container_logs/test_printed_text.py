"""A log is stored without secrets and control characters and with a limited length, however hostile it is."""

import json
import re
import time
from urllib.parse import quote

import pytest

from shared.container_logs.limits import MAX_BYTES
from shared.container_logs.printed_text import PrintedLine, PrintedLog, StoredText, read_stored, write_stored
from shared.redaction import HIDDEN

AT = "2026-01-01T00:00:00.000000000Z"
SECRET = "tok-0123456789abcdef"
PRIVATE_KEY = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nhkiG9w0BAQEFAASC\n-----END KEY-----"


def log_of(*texts: str, is_partial: bool = False, is_cut: bool = False) -> PrintedLog:
    return PrintedLog([PrintedLine(AT, text, is_partial) for text in texts], is_cut)


def shown(log: PrintedLog, *secrets: str) -> list[str]:
    return [line.text for line in read_stored(write_stored(log, secrets or (SECRET,)).text)]


def test_lines_keep_their_times() -> None:
    stored = write_stored(log_of("one", "", "three"), ())
    assert stored == StoredText(f"{AT} one\n{AT} \n{AT} three\n")
    assert list(read_stored(stored.text)) == list(log_of("one", "", "three").lines)
    assert write_stored(PrintedLog(), (SECRET,)) == StoredText()


@pytest.mark.parametrize(
    "spelling", [SECRET, f"https://x:{quote('p@ss word/1', safe='')}@host", json.dumps({"key": 'with "quotes"\n2'})]
)
def test_secrets_are_hidden_as_programs_print_them(spelling: str) -> None:
    [text] = shown(log_of(f"before {spelling} after"), SECRET, "p@ss word/1", 'with "quotes"\n2')
    assert HIDDEN in text
    assert not re.search("0123|ss.{1,3}word|quotes", text)


def test_secret_of_several_lines_is_hidden_and_no_line_is_lost() -> None:
    lines = ["it prints", *PRIVATE_KEY.split("\n"), "and goes on"]
    assert shown(log_of(*lines), PRIVATE_KEY) == ["it prints", HIDDEN, "", "", "", "and goes on"]


def test_secret_of_several_lines_is_hidden_with_other_output_between() -> None:
    first, second, *_ = PRIVATE_KEY.split("\n")
    assert shown(log_of(first, "of the other stream", second), PRIVATE_KEY) == [HIDDEN, "of the other stream", HIDDEN]


@pytest.mark.parametrize("length", range(4, len(SECRET)))
def test_part_of_a_secret_at_a_cut_is_hidden(length: int) -> None:
    text = f"{SECRET[-length:]} and {SECRET[:length]}"
    assert shown(log_of(text, is_partial=True, is_cut=True)) == [f"{HIDDEN} and {HIDDEN}"]
    assert shown(log_of(text)) == [text], "a whole line is no part of anything"


def test_part_of_a_secret_that_repeats_itself_is_hidden() -> None:
    assert shown(log_of("abab-rest", is_partial=True), "xxababab") == [f"{HIDDEN}-rest"]


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        ("nul\0bell\x07", "nul\ufffdbell\ufffd"),
        ("dos\r", "dos"),
        ("over\rwritten", "over\ufffdwritten"),
        ("a\tb", "a    b"),
        ("\u202egnp.exe", "\ufffdgnp.exe"),
        ("\x1b\x1b[0m[2J", "\ufffd[2J"),
        ("lone \ud800", "lone \ufffd"),
    ],
)
def test_control_characters_are_harmless(printed: str, text: str) -> None:
    assert shown(log_of(printed)) == [text]


@pytest.mark.parametrize("inside", ["\x1b[1m", "\x1b]0;x\x07"])
def test_secret_with_invisible_characters_inside_is_hidden(inside: str) -> None:
    assert shown(log_of(f"{SECRET[:8]}{inside}{SECRET[8:]}")) == [HIDDEN]


def test_last_lines_are_kept() -> None:
    lines = [f"{number:06} {'x' * 100}" for number in range(2000)]
    stored = write_stored(log_of(*lines), ())
    assert stored.is_cut
    assert MAX_BYTES - 200 < len(stored.text.encode()) <= MAX_BYTES
    kept = [line.text for line in read_stored(stored.text)]
    assert kept == lines[-len(kept) :]


def test_endless_line_is_cut_to_its_end() -> None:
    stored = write_stored(log_of("earlier", "\N{EURO SIGN}" * 100_000 + "the end"), ())
    [line] = read_stored(stored.text)
    assert stored.is_cut
    assert line.at == AT
    assert line.text.endswith("\N{EURO SIGN}the end")
    assert len(stored.text.encode()) <= MAX_BYTES


def test_secrets_are_hidden_before_the_log_is_cut() -> None:
    """A cut before the redaction would leave the end of a secret."""
    for padding in range(len(SECRET)):
        text = SECRET * 10 + "x" * (MAX_BYTES - len(AT) - 2 - padding)
        [line] = shown(log_of(text))
        assert set(line) <= {"x", "*"}


HOSTILE = {
    "titles": "\x1b]" * 120_000,
    "a colour": "\x1b[" + "0" * 240_000,
    "a title": "\x1b]" + "x" * 240_000,
    "a letter": "a" * 240_000,
    "parts of secrets": "tok-" * 60_000,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_are_cleaned_quickly(text: str) -> None:
    secrets = [SECRET, "a" * 60_000 + "b", "tok-" * 10_000 + "x", *(f"{SECRET}{number}" for number in range(200))]
    began = time.process_time()
    write_stored(log_of(text, is_partial=True), secrets)
    assert time.process_time() - began < 2


@pytest.mark.parametrize("unit", ["a", "line of a secret\n", "\x1b[1m", '%"\\', "tok-"])
def test_large_secrets_are_hidden_quickly(unit: str) -> None:
    """The longest secret that a user can store."""
    secrets = [f"{(unit * 65536)[:65530]}{number:06}" for number in range(200)]
    lines = [PrintedLine(AT, (unit * 250)[:250].replace("\n", " "), is_partial=number < 6) for number in range(1000)]
    began = time.process_time()
    write_stored(PrintedLog(lines, is_cut=True), secrets)
    assert time.process_time() - began < 2


def test_many_lines_of_secrets_are_hidden_quickly() -> None:
    """As many secrets as a user can store. Each line of the shortest ones is hidden separately."""
    long = ["\n".join(f"{'a' * 30}{secret:04}{line:04}" for line in range(200)) for secret in range(200)]
    began = time.process_time()
    [line] = shown(log_of("a" * 240_000 + PRIVATE_KEY.split("\n")[1], is_partial=True), *long, PRIVATE_KEY)
    assert time.process_time() - began < 3
    assert line.endswith(f"a{HIDDEN}")


def test_more_secrets_than_can_be_searched_for_leave_the_last_lines() -> None:
    """A user has a secret for each variable and header of an MCP server, and chooses what a sandbox prints."""
    secrets = [f"{'a' * 20}{number:05}{'a' * 20}" for number in range(20_000)]
    lines = ["a" * 15_000] * 16 + [f"the end of {secrets[7]}"]
    began = time.process_time()
    stored = write_stored(log_of(*lines, is_partial=True), secrets)
    assert time.process_time() - began < 6
    assert stored.is_cut
    assert [line.text for line in read_stored(stored.text)][-1:] == [HIDDEN]


def test_secrets_too_long_to_be_searched_for_leave_no_line() -> None:
    """Fifty starts with fifty secrets of the max size each."""
    began = time.process_time()
    assert write_stored(log_of("a line"), ["\x01" * 65_536] * 2500) == StoredText(is_cut=True)
    assert time.process_time() - began < 2
