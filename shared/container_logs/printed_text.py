"""The stored text of a container's log: sanitized, without secrets, and bounded in size.

A log is hostile: it may have any bytes, endless lines, and secrets across the borders of what was read. So the
order is fixed: control characters are removed first, then secrets are hidden, then the text is truncated.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple
from urllib.parse import quote

from shared.container_logs.limits import MAX_BYTES
from shared.redaction import HIDDEN, MAX_SECRETS_LENGTH, MIN_SECRET_LENGTH, PROVIDER_KEY

# Lines of a secret with this length or more, as in a private key, are also hidden individually: other output may appear
# between them.
MIN_LINE_LENGTH = 8
# A longer secret is hidden only as it is stored, not in other spellings: it is neither a key nor a password, and a user
# can have 200 secrets of 64 KiB.
MAX_SPELLED = 8192
# The maximum number of lines, of all secrets, that are hidden individually: the whole log is searched for each line.
MAX_LINES = 2000
# The maximum number of places in a secret that are compared with a text's beginning: a repetitive secret has very many.
MAX_PLACES = 100
# The max work of a search for secrets: for each of their spellings, the characters of the log. It takes a few seconds:
# sandboxes choose the text, and a user may have 20,000 secrets. The log's last 64 KiB are searched for 7,600 spellings.
MAX_WORK = 500_000_000
# The maximum number of spellings for which the parts of secrets at a line's ends are searched.
MAX_COMPARED = 10_000
# Escape sequences of a terminal: colors and cursor movements.
ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\n]*(?:\x07|\x1b\\)|[@-Z\\^_])")
# All other control characters, and those that change the direction of text.
CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class PrintedLine(NamedTuple):
    """A line that a container has printed.

    Args:
        at: when it was complete, as the engine writes it: RFC 3339 in UTC with nine decimal places.
        text: without any line's end.
        is_partial: its beginning or its end may be missing.
    """

    at: str
    text: str
    is_partial: bool = False


class PrintedLog(NamedTuple):
    """The last lines of a container, oldest first.

    Args:
        is_cut: whether the container has printed earlier lines.
    """

    lines: Sequence[PrintedLine] = ()
    is_cut: bool = False


class StoredText(NamedTuple):
    """A log as it is stored: lines that begin with their time.

    Args:
        is_cut: whether earlier lines are missing.
    """

    text: str = ""
    is_cut: bool = False


def write_stored(log: PrintedLog, secrets: Collection[str]) -> StoredText:
    """Make a log's lines harmless, hide the secrets in them, and cut them to the last `MAX_BYTES`.

    Fewer lines are left if a search of more would take too long, and none if the secrets are too long.
    """
    if sum(map(len, secrets)) > MAX_SECRETS_LENGTH:
        return StoredText(is_cut=True)
    known = _spellings(secrets)
    clean = [line._replace(text=_sanitize(f"{line.text}\n")[:-1]) for line in log.lines]
    lines, is_cut = _last_lines(clean, MAX_WORK // max(1, len(known)))
    printed = "".join(f"{line.text}\n" for line in lines)
    shown = hide_secrets(printed, known).split("\n")[:-1]
    kept: list[str] = []
    size = 0
    for line, text in zip(reversed(lines), reversed(shown), strict=True):
        whole = f"{line.at} {_hide_parts(text, known) if line.is_partial else text}\n"
        if (size := size + len(whole.encode())) > MAX_BYTES:
            kept += [] if kept else [_cut(line.at, whole)]
            return StoredText("".join(reversed(kept)), is_cut=True)
        kept.append(whole)
    return StoredText("".join(reversed(kept)), is_cut or log.is_cut)


def read_stored(text: str) -> Iterator[PrintedLine]:
    for line in text.split("\n")[:-1]:
        at, _, printed = line.partition(" ")
        yield PrintedLine(at, printed)


def hide_secrets(text: str, known: Collection[str]) -> str:
    """Replace each secret in a text, long ones first. The number of lines stays."""
    for secret in known:
        text = text.replace(secret, HIDDEN + "\n" * secret.count("\n"))
    return PROVIDER_KEY.sub(HIDDEN, text)


def _last_lines(lines: Sequence[PrintedLine], max_length: int) -> tuple[Sequence[PrintedLine], bool]:
    """The last lines with at most this length together, and whether anything before is left out."""
    kept: list[PrintedLine] = []
    for line in reversed(lines):
        if len(line.text) > max_length:
            kept += [] if kept else [line._replace(text=line.text[-max_length:], is_partial=True)]
            return kept[::-1], True
        kept.append(line)
        max_length -= len(line.text)
    return kept[::-1], False


def _spellings(secrets: Iterable[str]) -> list[str]:
    """Each secret as programs print it: in JSON, in a URL, and line by line. Long ones first."""
    found, lines_left = set[str](), MAX_LINES
    # Secrets with few lines come first, so that the lines of as many secrets as possible are hidden.
    for secret in sorted(secrets, key=lambda secret: secret.count("\n")):
        clean = _sanitize(secret)
        found |= {clean, clean.strip()}
        if len(secret) <= MAX_SPELLED:
            found |= {json.dumps(secret)[1:-1], quote(secret, safe="")}
            lines = {line for line in clean.split("\n") if len(line) >= MIN_LINE_LENGTH} - found
            lines_left -= len(lines)
            found |= lines if lines_left >= 0 else set()
    return sorted((text for text in found if len(text) >= MIN_SECRET_LENGTH), key=len, reverse=True)


def _sanitize(text: str) -> str:
    """The same lines without control characters. A tab becomes spaces; a carriage return overwrites no line."""
    text = ESCAPE.sub("", text) if "\x1b" in text else text
    return CONTROLS.sub(REPLACEMENT, text.replace("\r\n", "\n").replace("\t", "    "))


def _hide_parts(text: str, known: Collection[str]) -> str:
    """Hide the end of a secret with which a text begins, and the beginning of one with which it ends."""
    if len(known) > MAX_COMPARED:
        return HIDDEN
    for secret in known:
        if length := _length_of_end(secret, text):
            text = HIDDEN + text[length:]
        if length := _length_of_beginning(secret, text):
            text = text[:-length] + HIDDEN
    return text


def _length_of_end(secret: str, text: str) -> int:
    """How many characters at the beginning of the text are the end of the secret."""
    first = text[:MIN_SECRET_LENGTH]
    place = 0
    for _ in range(MAX_PLACES if len(first) == MIN_SECRET_LENGTH else 0):
        if (place := secret.find(first, place + 1)) < 0:
            break
        if len(secret) - place <= len(text) and text.startswith(secret[place:]):
            return len(secret) - place
    return 0


def _length_of_beginning(secret: str, text: str) -> int:
    """How many characters at the end of the text are the beginning of the secret."""
    return _length_of_end(secret[::-1], text[-len(secret) :][::-1])


def _cut(at: str, line: str) -> str:
    """The end of a line that is too long by itself, with its time."""
    return f"{at} " + line.encode()[-MAX_BYTES + len(at) + 1 :].decode(errors="ignore")
