"""The operations that docs/reference/api.md lists. Sweeps over the OpenAPI description must cover all of them."""

import re

from tests.docs.documents import read_page, read_section

ROW = re.compile(r"^\| `([A-Z]+ /\S*)` \| (\w+) \| (.+) \|$", re.MULTILINE)
REFERENCE = read_page("reference/api.md")
# Each operation, with the key that it requires and with its description.
ROWS = ROW.findall(REFERENCE)


def operations_documented_as(words: str) -> set[str]:
    """Return the operations whose description contains `words`."""
    return {operation for operation, _, text in ROWS if words in text}


def operations_with_key(kind: str) -> set[str]:
    """Return the operations that require a kind of key: `user`, `sandbox`, `metrics` or `none`."""
    return {operation for operation, key, _ in ROWS if key == kind}


# All operations, in the form `GET /alive`.
EVERY = sorted(operation for operation, _, _ in ROWS)
CHANGING = {operation for operation in EVERY if not operation.startswith("GET ")}
DEPRECATED = {operation for operation, _, _ in ROW.findall(read_section(REFERENCE, "Legacy V0 API"))}
KEYLESS = operations_with_key("none")
FOR_SANDBOXES = operations_with_key("sandbox")
WITH_THE_METRICS_KEY = operations_with_key("metrics")
FOR_USERS = set(EVERY) - KEYLESS - FOR_SANDBOXES
