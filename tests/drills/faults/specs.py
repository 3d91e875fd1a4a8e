"""The specs of the operations' sandboxes, all with the tiny image."""

from collections.abc import Mapping

from tests.services.engine import TINY_IMAGE

BROKEN_IMAGE = "agent-workspace/tiny:broken"
TALKING_IMAGE = "agent-workspace/tiny:talking"
FORGETFUL_IMAGE = "agent-workspace/tiny:forgetful"
REFUSING_IMAGE = "agent-workspace/tiny:refusing"
SLOW_IMAGE = "agent-workspace/tiny:slow"
# With a warm pool.
POOLED_IMAGE = "agent-workspace/tiny:pooled"
# Tests kill and remove its containers, so a sandbox in ERROR is no violation.
FRAGILE_IMAGE = "agent-workspace/tiny:fragile"
# With host names in its egress, reached by the egress proxy.
NAMED_IMAGE = "agent-workspace/tiny:named"
# Images of the registry.
PULLED, MISSING = "tiny:3", "tiny:missing"
TALKS = {"TINY_CONVERSES": "1", "TINY_TITLE": "A talk"}
SPECS: Mapping[str, dict[str, str]] = {
    TINY_IMAGE: {},
    # After the first request, a probe: the worker has then made all writes that precede it, however slow it is.
    BROKEN_IMAGE: {"TINY_EXIT_CODE": "3", "TINY_EXIT_AFTER_REQUEST": "1"},
    TALKING_IMAGE: TALKS,
    FORGETFUL_IMAGE: {**TALKS, "TINY_LOSES_MESSAGES": "1"},
    REFUSING_IMAGE: {**TALKS, "TINY_REFUSES": "1"},
    SLOW_IMAGE: {"TINY_BOOT_SECONDS": "1.5"},
    FRAGILE_IMAGE: {},
    POOLED_IMAGE: {},
    NAMED_IMAGE: {},
}
DOOMED = frozenset({BROKEN_IMAGE, FRAGILE_IMAGE})
