"""`python -m deploy.service.flower`: Flower, for people with its password only."""

import hmac
import logging
import os
import signal
import sys
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from flower.app import Flower  # type: ignore[import-untyped]
from flower.options import options  # type: ignore[import-untyped]
from flower.urls import settings as flower_settings  # type: ignore[import-untyped]
from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.web import RequestHandler

from deploy.service.flower_login import read_password
from deploy.service.flower_tasks import make_formatter
from shared.db.database import Database
from shared.settings import FLOWER_USER, Settings
from worker.celery_app import app

# The path at which the API shows Flower to operators (`api.web.admin.flower`).
PREFIX = "admin/flower"
LOCAL = {"127.0.0.1", "localhost"}


class GuardedFlower(Flower):  # type: ignore[misc]
    """Refuses every request without the password, metrics and static files included.

    A request that names another host is refused, too: a website may have its own name resolved to this machine, and is
    then of the same origin to a browser.
    """

    def guard(self, hosts: set[str], user: str, password: str) -> None:
        """Serve only requests for these host names, by this user."""
        self._hosts = hosts
        self._authorization = "Basic " + b64encode(f"{user}:{password}".encode()).decode()

    def find_handler(self, request: HTTPServerRequest, **rest: Any) -> HTTPMessageDelegate:
        """The handler of a request, or one that refuses it."""
        given = request.headers.get("Authorization", "")
        if request.host_name not in self._hosts:
            return self._refuse(request, 403)
        if not hmac.compare_digest(given.encode(), self._authorization.encode()):
            return self._refuse(request, 401)
        found: HTTPMessageDelegate = super().find_handler(request, **rest)
        return found

    def _refuse(self, request: HTTPServerRequest, status: int) -> HTTPMessageDelegate:
        found: HTTPMessageDelegate = self.get_handler_delegate(request, _Refusal, {"status": status})
        return found


class _Refusal(RequestHandler):
    def initialize(self, status: int) -> None:
        self.set_status(status)
        if status == 401:
            self.set_header("WWW-Authenticate", 'Basic realm="Flower"')

    def prepare(self) -> None:
        self.finish("refused\n")


def main(environment: Mapping[str, str]) -> None:
    """Serve until a signal ends the process."""
    logging.basicConfig(level=logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    settings = Settings()
    password = read_password(settings)
    # Flower's own check is set, too: without one, Flower closes its interface. With `read_only`, Flower neither stops
    # workers nor sends jobs.
    options.basic_auth, options.read_only = [f"{FLOWER_USER}:{password}"], True
    options.address, options.port = "127.0.0.1", settings.flower_port
    options.url_prefix, options.tasks_columns = PREFIX, "name,args,state,received,runtime,worker"
    options.format_task = make_formatter(Database(settings.database, pool_size=1))
    own = {name: f"/{PREFIX}{flower_settings[name]}" for name in ("login_url", "static_url_prefix")}
    flower = GuardedFlower(capp=app, options=options, **flower_settings | own)
    hosts = {name.strip() for name in environment.get("AW_FLOWER_HOSTS", "").lower().split(",")}
    flower.guard((LOCAL | hosts) - {""}, FLOWER_USER, password)
    try:
        flower.start_http_server()
    except OSError as error:
        sys.exit(f"flower: AW_FLOWER_PORT, {settings.flower_port}, can't be used: {error}")
    flower.start()


if __name__ == "__main__":
    main(os.environ)
