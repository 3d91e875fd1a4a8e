"""Correlation of one request's work across processes: its id in logs and messages, and its trace, if there is one.

`configure_traces` sets `tracer` if traces are configured. Without traces, OpenTelemetry's SDK is not imported.
"""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from shared import reasons
from shared.crypto import KEY_PREFIX

if TYPE_CHECKING:
    from shared.observability.traces import OpenTelemetryTracer

REQUEST_ID_HEADER = "X-Request-ID"
# Headers of a job message: the id of the request that caused it, and when it was published, in seconds since 1970.
REQUEST_ID, PUBLISHED_AT = "request_id", "published_at"
# Printable in a log line, a header and a command line.
WELL_FORMED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

# The id of the request, or of the job, that this thread or task works for. Empty: it works for none.
request_id: ContextVar[str] = ContextVar("request_id", default="")


# Creates the spans of this process.
tracer: "OpenTelemetryTracer | None" = None


def configure_traces(url: str, service: str) -> None:
    """Send traces to an OTLP receiver at this URL; without a URL, create none.

    Raises:
        SystemExit: the packages of the extra `otel` are missing.
    """
    if not url:
        return
    try:
        from shared.observability.traces import send_traces  # noqa: PLC0415 - slow to import, and an extra
    except ImportError:
        hint = reasons.more("aw_traces_url-needs-opentelemetry")
        raise SystemExit(f"AW_TRACES_URL needs OpenTelemetry: pip install 'agent-workspace[otel]' {hint}") from None
    send_traces(url, service)


def span(
    name: str, kind: str = "internal", parent: Mapping[str, str] | None = None, **attributes: Any
) -> AbstractContextManager[Any]:
    """Return a block that is one span of the trace; without traces, it does nothing."""
    return nullcontext() if tracer is None else tracer.span(name, kind, parent, attributes)


def outgoing_headers() -> dict[str, str]:
    """Return the headers by which an agent server relates a request to the one that caused it."""
    found = request_id.get()
    headers = {REQUEST_ID_HEADER: found} if found else {}
    return headers if tracer is None else headers | tracer.carrier()


def is_well_formed(text: str) -> bool:
    """Whether a client's id may be used: short, of plain characters, and no key of this service by mistake."""
    return WELL_FORMED.fullmatch(text) is not None and not text.startswith(KEY_PREFIX)
