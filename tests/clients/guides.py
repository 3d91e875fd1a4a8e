"""The guides' examples for clients, with the address of the tested service."""

import re

from tests.docs.documents import read_page, read_section

# The second address is the door's; sandboxes can reach the service at it, too.
ADDRESS = re.compile(r"http://(?:127\.0\.0\.1:3000|10\.213\.0\.1:3001)")
BLOCK = r"```{}\n(.*?)```"


def example(client: str, language: str, url: str) -> str:
    """Return the first block in that language of the client's section."""
    found = re.search(BLOCK.format(language), _guide(client), re.DOTALL)
    assert found is not None
    text, count = ADDRESS.subn(url, found[1])
    assert count == 1
    return text


def installed(client: str) -> str:
    """Return the packages, with versions, that the client's section installs."""
    found = re.search(r"\b(?:pip|npm) install ([^`]+)`", _guide(client))
    assert found is not None
    return found[1]


def _guide(client: str) -> str:
    return read_section(read_page("use/openhands-clients.md"), client)
