"""Metrics in Prometheus' text format, under a key of their own: they are about everybody, and are nobody's."""

import hmac
from collections.abc import Iterable

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, Metric, generate_latest

from api.context import Context, Here
from api.credentials import read_bearer
from api.gauges import read_gauges
from api.refusals import refusals
from shared.errors import Unauthenticated
from shared.instruments import collector

router = APIRouter(tags=["health"])


class _Scrape:
    """One look at what this host's processes have counted, and at what the store says."""

    def __init__(self, here: Context) -> None:
        self._here = here

    def collect(self) -> Iterable[Metric]:
        """The whole of it."""
        return [*collector(self._here.settings).collect(), *read_gauges(self._here.database)]


@router.get("/metrics", response_class=PlainTextResponse, responses=refusals(401, 503))
def get_metrics(request: Request, here: Here) -> Response:
    """Counters and gauges for Prometheus, with the key in `metrics.key`."""
    _require_key(request, here)
    return Response(generate_latest(_Scrape(here)), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _require_key(request: Request, here: Context) -> None:
    """Let in whoever has the key that the file holds now.

    Raises:
        Unauthenticated: no key or a wrong one, or there is no file: then nobody has the right one.
    """
    try:
        key = here.settings.metrics_key_file.read_text().strip()
    except FileNotFoundError:
        key = ""
    shown = read_bearer(request.headers.get("Authorization")) or ""
    if not key or not hmac.compare_digest(shown.encode(errors="surrogatepass"), key.encode()):
        raise Unauthenticated("metrics have a key of their own: Authorization: Bearer <what metrics.key holds>")
