"""Metrics in Prometheus' text format. They cover all users, so they have a separate key."""

import hmac
from collections.abc import Iterable

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, Metric, generate_latest

from api.errors.openapi import error_responses
from api.request.authentication import read_bearer
from api.request.context import Context, ContextDep
from api.routes.ops.store_gauges import read_gauges
from shared.errors import Unauthenticated, Unavailable
from shared.observability.metrics import collector

router = APIRouter(tags=["health"])


class _Scrape:
    """One scrape: the counters of this host's processes, and gauges read from the database."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def collect(self) -> Iterable[Metric]:
        """All metrics."""
        return [*collector(self._context.settings).collect(), *read_gauges(self._context.database)]


@router.get("/metrics", response_class=PlainTextResponse, responses=error_responses(401, 429, 503))
def get_metrics(request: Request, context: ContextDep) -> Response:
    """Counters and gauges for Prometheus, with the key in `metrics.key`."""
    _require_key(request, context)
    return Response(generate_latest(_Scrape(context)), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _require_key(request: Request, context: Context) -> None:
    """Require the key that the file holds now."""
    try:
        key = context.settings.metrics_key_file.read_text().strip()
    except FileNotFoundError:
        key = ""
    except PermissionError:
        advice = "run `agent-workspace db migrate` as root, with the API's AW_VAR_DIR"
        raise Unavailable(f"the API's user may not read metrics.key: {advice}") from None
    shown = read_bearer(request.headers.get("Authorization")) or ""
    if not key or not hmac.compare_digest(shown.encode(errors="surrogatepass"), key.encode()):
        raise Unauthenticated("metrics require their own key: Authorization: Bearer <content of metrics.key>")
