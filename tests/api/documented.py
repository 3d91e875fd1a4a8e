"""The operations as the README's tables list them: what sweeps over the code's own description are held to."""

import re

from tests.services.directories import REPOSITORY

ROW = re.compile(r"^\| `([A-Z]+ /\S*)` \| (.+) \|$", re.MULTILINE)
FOLLOWING = re.compile(r"as for the next (one|two|three)\b")
NUMBERS = {"one": 1, "two": 2, "three": 3}
README = (REPOSITORY / "README.md").read_text()


def operations_documented_as(words: str) -> set[str]:
    """Those whose row says `words`, with the rows after it that it says to be alike."""
    rows = ROW.findall(README)
    found: set[str] = set()
    for position, (_, text) in enumerate(rows):
        if words in text:
            alike = FOLLOWING.search(text)
            end = position + 1 + (NUMBERS[alike[1]] if alike else 0)
            found |= {operation for operation, _ in rows[position:end]}
    return found


# Each as `GET /alive`.
EVERY = sorted(operation for operation, _ in ROW.findall(README))
CHANGING = {operation for operation in EVERY if not operation.startswith("GET ")}
DEPRECATED = {operation for operation, _ in ROW.findall(README.split("**V0.**")[1])}
KEYLESS = operations_documented_as("no key needed")
FOR_SANDBOXES = operations_documented_as("for sandboxes") | operations_documented_as("for agent servers")
WITH_THE_METRICS_KEY = operations_documented_as("`var/metrics.key`")
FOR_USERS = set(EVERY) - KEYLESS - FOR_SANDBOXES
