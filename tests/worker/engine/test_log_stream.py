"""The parser of an engine's log: with frames or without, in any chunks, and bounded whatever the container prints."""

import time
from collections.abc import Iterator

import pytest

from shared.container_logs.printed_text import PrintedLine, PrintedLog, read_stored, write_stored
from shared.redaction import HIDDEN
from worker.engine import log_stream
from worker.engine.log_stream import MAX_ENTRIES, MAX_KEPT_BYTES, read_log

STDOUT, STDERR = 1, 2
PART = 16 * 1024


def at(number: int) -> str:
    return f"2026-01-01T00:00:00.{number:09}Z"


def frame(text: bytes, number: int = 0, stream: int = STDOUT) -> bytes:
    content = at(number).encode() + b" " + text
    return bytes([stream, 0, 0, 0]) + len(content).to_bytes(4, "big") + content


def chunks(content: bytes, size: int) -> Iterator[bytes]:
    return (content[place : place + size] for place in range(0, len(content), size))


@pytest.mark.parametrize("size", [1, 7, 100, 10_000])
def test_lines_of_both_streams_are_read_from_any_chunks(size: int) -> None:
    sent = frame(b"one\n", 1) + frame(b"two\n", 2, STDERR) + frame(b"\n", 3) + frame(b"\xff\xfe\0 four\n", 4)
    expected = [
        PrintedLine(at(number), text) for number, text in enumerate(["one", "two", "", "\ufffd\ufffd\0 four"], 1)
    ]
    assert read_log(chunks(sent, size)) == PrintedLog(expected)


@pytest.mark.parametrize("size", [1, 10_000])
def test_lines_of_a_terminal_have_no_frames(size: int) -> None:
    sent = f"{at(1)} one\r\n{at(2)} two\r\n{at(3)} inco".encode()
    assert read_log(chunks(sent, size)).lines == [PrintedLine(at(1), "one\r"), PrintedLine(at(2), "two\r")]


def test_parts_of_a_line_are_joined_though_the_other_stream_prints_between() -> None:
    parts = [frame(b"x" * PART, 1), frame(b"error\n", 2, STDERR), frame(b"y" * PART, 3), frame(b"z\n", 4)]
    assert read_log(parts).lines == [
        PrintedLine(at(2), "error"),
        PrintedLine(at(4), "x" * PART + "y" * PART + "z"),
    ]


def test_line_without_an_end_is_shown_as_partial() -> None:
    assert read_log([frame(b"done\n", 1), frame(b"x" * PART, 2)]).lines == [
        PrintedLine(at(1), "done"),
        PrintedLine(at(2), "x" * PART, is_partial=True),
    ]


@pytest.mark.parametrize("border", range(1, 20))
def test_secret_across_the_border_of_two_parts_is_hidden(border: int) -> None:
    secret = "tok-0123456789abcdef"
    line = b"x" * (PART - border) + secret.encode() + b"\n"
    log = read_log([frame(line[:PART], 1), frame(line[PART:], 2)])
    [shown] = read_stored(write_stored(log, [secret]).text)
    assert shown.text == "x" * (PART - border) + HIDDEN


@pytest.mark.parametrize("border", range(4, 20))
def test_secret_across_the_beginning_of_the_kept_part_is_hidden(border: int) -> None:
    secret = "tok-0123456789abcdef"
    endless = b"x" * (PART - border) + secret.encode() + b" rest " + b"y" * (MAX_KEPT_BYTES - PART)
    log = read_log([frame(part) for part in chunks(endless, PART)])
    assert log.is_cut
    stored = write_stored(PrintedLog([log.lines[0]._replace(text=log.lines[0].text[:100])]), [secret])
    assert not any(secret[-length:] in stored.text for length in range(4, border))


def test_large_log_is_bounded_in_memory() -> None:
    log = read_log(frame(b"%06d %s\n" % (number, b"x" * 1000), number) for number in range(20_000))
    assert log.is_cut
    assert MAX_KEPT_BYTES / 2 < sum(len(line.text) for line in log.lines) <= MAX_KEPT_BYTES
    assert log.lines[-1].text.startswith("019999 ")
    assert log.lines[0].is_partial, "its beginning may be missing"
    assert not log.lines[1].is_partial


def test_full_tail_may_begin_inside_a_line() -> None:
    log = read_log(frame(b"x\n") for _ in range(MAX_ENTRIES))
    assert (log.is_cut, log.lines[0].is_partial) == (True, True)
    assert not read_log(frame(b"x\n") for _ in range(MAX_ENTRIES - 1)).is_cut


def test_endless_response_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_stream, "MAX_SECONDS", 0.05)

    def endless() -> Iterator[bytes]:
        while True:
            yield frame(b"more\n")

    began = time.monotonic()
    assert read_log(endless()).lines
    assert time.monotonic() - began < 2


def test_incomplete_frame_ends_the_reading() -> None:
    def huge() -> Iterator[bytes]:
        yield frame(b"one\n")
        yield b"\1\0\0\0\xff\xff\xff\xff"
        for _ in range(64):
            yield b"x" * 65536
        pytest.fail("it reads on")

    assert [line.text for line in read_log(huge()).lines] == ["one"]


@pytest.mark.parametrize("content", [b"", b"\1\0\0\0", frame(b"x\n")[:-1], b"\1\0\0\0\0\0\0\0", b"no time\n"])
def test_malformed_responses_cause_no_error(content: bytes) -> None:
    assert len(read_log([content]).lines) <= 1
