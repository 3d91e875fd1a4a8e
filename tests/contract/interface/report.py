"""The report: one row for each promise of the interface."""

from tests.contract.interface import operations, settings
from tests.contract.interface.promise import Promise
from tests.services.directories import REPOSITORY

REPORT = REPOSITORY / "docs" / "reports" / "interface.md"
PROMISES: tuple[Promise, ...] = (*settings.PROMISES, *operations.PROMISES)
HEAD = """# The interface, promise by promise

The service was built for an interface of nine operations. Each row is a promise of its document: the section, the
requests that are sent to a running service with a worker and an engine, and the responses. Values in a response are
named by their paths in the body, or by their header. `tests/contract/interface/test_interface.py` sends every request
and compares every response. The named test covers the promise without an engine.

The body of every response is JSON. Every 422 is the validation error body of section 2.4: `detail`, a list of `loc`,
`msg` and `type`, where `loc` is a list of texts. Every other error has a text in `detail`.

What the document calls "not shown" is as in OpenHands V1: see [compatibility](../reference/compatibility.md). Null in a
nullable field sets it to its default, except that it keeps keys, the model, its URL and the consent to analytics.

`.venv/bin/python -m tests.contract.interface` writes this file.

| Section | The interface asks | Requests | Responses | Test |
|---|---|---|---|---|
"""


def render() -> str:
    """Return the text of the report."""
    return HEAD + "".join(map(_row, sorted(PROMISES, key=lambda promise: promise.section)))


def _row(promise: Promise) -> str:
    called = "<br>".join(call.describe_request() for call in promise.calls)
    answered = "<br>".join(call.describe_response() for call in promise.calls)
    return "| " + " | ".join((promise.section, promise.asks, called, answered, f"`{promise.test}`")) + " |\n"
