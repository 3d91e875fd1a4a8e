"""The reference of the command line is what the code says, and pages lead to it."""

from tests.docs.command_reference import PAGE, reference


def test_reference_of_the_command_line_matches_the_code() -> None:
    assert PAGE.read_text() == reference(), "write it again: python -m tests.docs.command_reference"
