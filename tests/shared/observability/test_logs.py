"""Log lines as text: no value of a request reaches their terminal as a control sequence."""

import logging
import sys
from collections.abc import Callable, Iterator
from io import StringIO
from types import SimpleNamespace

import pytest
import structlog

from shared.observability.logs import configure_logs
from shared.settings import Settings

# Clears the screen; the same of one character; reverses the text after it; begins another line.
HARMFUL = ("\x1b[2J", "\x9b2J", "\u202e", "\nlevel=info")


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Iterator[StringIO]:
    """Where lines are printed, in the format for consoles; what the tests' session configured is restored."""
    root, output = logging.getLogger(), StringIO()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(sys, "stdout", output)
    configured = structlog.get_config()
    configure_logs(Settings(log_format="console"), "web.1")
    yield output
    structlog.configure(**configured)


def from_request(text: str) -> None:
    structlog.get_logger().error("x", path=f"/{text}")


def nested(text: str) -> None:
    structlog.get_logger().error("x", found={"paths": [SimpleNamespace(path=text)], text: 1})


def from_object(text: str) -> None:
    structlog.get_logger().error("x", error=type("Error", (), {"__repr__": lambda _self: text})())


def of_library(text: str) -> None:
    logging.getLogger("library").warning("not found: %s", text)


@pytest.mark.parametrize("text", HARMFUL)
@pytest.mark.parametrize("write", [from_request, nested, from_object, of_library])
def test_console_gets_no_control_sequence(console: StringIO, write: Callable[[str], None], text: str) -> None:
    write(text)
    line = console.getvalue()
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    assert text[1:] in line, "the rest is readable"


def test_traceback_keeps_its_lines(console: StringIO) -> None:
    try:
        raise RuntimeError("\x1b[2J")
    except RuntimeError:
        structlog.get_logger().exception("x", path="/\x1b[2J")
    first, *lines = console.getvalue().splitlines()
    assert "path=/\\x1b[2J" in first
    assert lines[-1] == "RuntimeError"
    assert any(line.startswith('  File "') for line in lines)
    assert "\x1b" not in console.getvalue()


def test_numbers_are_logged_unchanged(console: StringIO) -> None:
    structlog.get_logger().info("done", seconds=1.5, count=2, ok=True, name="ä")
    assert all(each in console.getvalue() for each in ("done", "seconds=1.5", "count=2", "ok=True", "name=ä"))
