"""The README's examples for clients, with the address of the service that is tested."""

import re

from tests.services.directories import REPOSITORY

# Of these the second one is also where sandboxes find the service.
ADDRESS = re.compile(r"http://(?:127\.0\.0\.1|172\.17\.0\.1):3000")
HEADING = r"^### {}$"
BLOCK = r"```{}\n(.*?)```"


def example(heading: str, language: str, url: str) -> str:
    """The first block in that language below that heading."""
    found = re.search(BLOCK.format(language), _section(heading), re.DOTALL)
    assert found is not None
    given, count = ADDRESS.subn(url, found[1])
    assert count == 1
    return given


def installed(heading: str) -> str:
    """What the example has its reader install, with the version."""
    found = re.search(r"\b(?:pip|npm) install ([^`]+)`", _section(heading))
    assert found is not None
    return found[1]


def _section(heading: str) -> str:
    readme = (REPOSITORY / "README.md").read_text()
    return re.split(HEADING.format(re.escape(heading)), readme, maxsplit=1, flags=re.MULTILINE)[1]
