"""Traces by OpenTelemetry: imported only if `AW_TRACES_URL` is set.

A span has the names of an operation and of a route, and ids of rows. No body, query, header or error's text is in it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import Sampler, SamplingResult
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from shared.observability import correlation

_PROPAGATOR = TraceContextTextMapPropagator()


class OpenTelemetryTracer:
    """Creates spans, and sends them to a processor."""

    def __init__(self, service: str, processor: SpanProcessor) -> None:
        provider = TracerProvider(resource=Resource.create({SERVICE_NAME: service}))
        provider.sampler = _LocalSampler(provider.sampler)
        provider.add_span_processor(processor)
        self._tracer = provider.get_tracer("agent-workspace")

    @contextmanager
    def span(
        self, name: str, kind: str, parent: Mapping[str, str] | None, attributes: Mapping[str, Any]
    ) -> Iterator[trace.Span]:
        """Return a block that is one span, a child of the context's span or of the one that `parent` names.

        An error is noted by its type: its text may hold a secret.
        """
        above = None if parent is None else _PROPAGATOR.extract(parent)
        with self._tracer.start_as_current_span(
            name,
            above,
            SpanKind[kind.upper()],
            attributes=attributes,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield span
            except BaseException as error:
                span.set_status(Status(StatusCode.ERROR, type(error).__name__))
                raise

    def carrier(self) -> dict[str, str]:
        """Return the header that names the span of the context (W3C Trace Context)."""
        headers: dict[str, str] = {}
        _PROPAGATOR.inject(headers)
        return headers


class _LocalSampler(Sampler):
    """Applies a rule as if each trace began here: a client must not choose whether its requests are sampled."""

    def __init__(self, rule: Sampler) -> None:
        self._rule = rule

    def should_sample(
        self, parent_context: Context | None, trace_id: int, *arguments: Any, **options: Any
    ) -> SamplingResult:
        """Apply the rule, but ignore a parent in another process, whose flags the client may have chosen."""
        is_remote = trace.get_current_span(parent_context).get_span_context().is_remote
        return self._rule.should_sample(Context() if is_remote else parent_context, trace_id, *arguments, **options)

    def get_description(self) -> str:
        return self._rule.get_description()


def send_traces(url: str, service: str) -> None:
    """Trace what this process does, and send the spans to the receiver in batches, in the background."""
    correlation.tracer = OpenTelemetryTracer(service, BatchSpanProcessor(OTLPSpanExporter(url)))
