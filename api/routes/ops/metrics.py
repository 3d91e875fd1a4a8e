"""Metrics in Prometheus' text format, under a key of their own: they are about everybody, and are nobody's."""

import hmac
from collections.abc import Iterable

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, Metric, generate_latest

from api.errors.openapi import error_responses
from api.request.bearer import read_bearer
from api.request.context import Context, ContextDep
from api.routes.ops.store_gauges import read_gauges
from shared.errors import Unauthenticated
from shared.observability.metrics import collector

router = APIRouter(tags=["health"])


class _Scrape:
    """One look at what this host's processes have counted, and at what the store says."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def collect(self) -> Iterable[Metric]:
        """The whole of it."""
        return [*collector(self._context.settings).collect(), *read_gauges(self._context.database)]


@router.get("/metrics", response_class=PlainTextResponse, responses=error_responses(401, 503))
def get_metrics(request: Request, context: ContextDep) -> Response:
    """Counters and gauges for Prometheus, with the key in `metrics.key`."""
    _require_key(request, context)
    return Response(generate_latest(_Scrape(context)), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _require_key(request: Request, context: Context) -> None:
    """Let in whoever has the key that the file holds now.

    Raises:
        Unauthenticated: no key or a wrong one, or there is no file: then nobody has the right one.
    """
    try:
        key = context.settings.metrics_key_file.read_text().strip()
    except FileNotFoundError:
        key = ""
    shown = read_bearer(request.headers.get("Authorization")) or ""
    if not key or not hmac.compare_digest(shown.encode(errors="surrogatepass"), key.encode()):
        raise Unauthenticated("metrics have a key of their own: Authorization: Bearer <what metrics.key holds>")
