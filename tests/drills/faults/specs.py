"""The specs of the operations' sandboxes, all with the tiny image."""

from collections.abc import Mapping

from tests.services.engine import TINY_IMAGE

BROKEN_IMAGE = "agent-workspace/tiny:broken"
CONVERSATIONAL_IMAGE = "agent-workspace/tiny:conversational"
LOSING_IMAGE = "agent-workspace/tiny:losing"
REJECTING_IMAGE = "agent-workspace/tiny:rejecting"
SLOW_IMAGE = "agent-workspace/tiny:slow"
# With a warm pool.
POOLED_IMAGE = "agent-workspace/tiny:pooled"
# Tests kill and remove its containers, so a sandbox in ERROR is no violation.
FRAGILE_IMAGE = "agent-workspace/tiny:fragile"
# With host names in its egress, reached by the egress proxy.
NAMED_IMAGE = "agent-workspace/tiny:named"
# Images of the registry.
PULLED, MISSING = "tiny:3", "tiny:missing"
CONVERSATIONAL = {"TINY_CONVERSES": "1", "TINY_TITLE": "A title"}
SPECS: Mapping[str, dict[str, str]] = {
    TINY_IMAGE: {},
    # After the first request, a probe: the worker has then made all writes that precede it, however slow it is.
    BROKEN_IMAGE: {"TINY_EXIT_CODE": "3", "TINY_EXIT_AFTER_REQUEST": "1"},
    CONVERSATIONAL_IMAGE: CONVERSATIONAL,
    LOSING_IMAGE: {**CONVERSATIONAL, "TINY_LOSES_MESSAGES": "1"},
    REJECTING_IMAGE: {**CONVERSATIONAL, "TINY_REFUSES": "1"},
    SLOW_IMAGE: {"TINY_BOOT_SECONDS": "1.5"},
    FRAGILE_IMAGE: {},
    POOLED_IMAGE: {},
    NAMED_IMAGE: {},
}
MAY_FAIL = frozenset({BROKEN_IMAGE, FRAGILE_IMAGE})
