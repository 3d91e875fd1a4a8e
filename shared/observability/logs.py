"""Logs: one line per event, with the process's name. Ids are logged, secrets never."""

import logging
import os
import sys
import traceback
from typing import Any

import structlog

from shared.observability.correlation import request_id
from shared.settings import Settings

# Values of more than one line.
TRACES = ("exception", "stack")


def configure_logs(settings: Settings, process: str) -> None:
    """Send this service's logs and the libraries' to standard output in one format."""
    name = os.environ.get("PROCESS", process)
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso" if settings.log_format == "json" else "%H:%M:%S", utc=True),
        _naming(name),
        _add_request,
        _add_trace,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stdout)
    formatter = structlog.stdlib.ProcessorFormatter(processors=_renderers(settings), foreign_pre_chain=shared)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(settings.log_level.upper())
    # These libraries log every request at INFO; this service logs the results.
    for chatty in (
        "httpx",
        "httpcore",
        "websockets",
        "urllib3",
        "celery.utils.functional",
        "kombu",
        "celery.worker.strategy",
        "alembic",
    ):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("uvicorn.error").addFilter(_has_no_key)


def _has_no_key(record: logging.LogRecord) -> bool:
    """Exclude uvicorn's lines about websockets, which contain queries, and debug lines, which contain headers."""
    return record.levelno > logging.DEBUG and '"WebSocket ' not in str(record.msg)


def _add_request(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """Name the request, or the job, that the line is about."""
    if (found := request_id.get()) and "request_id" not in event:
        event["request_id"] = found
    return event


def _add_trace(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """Log an error's traceback and type, but not its text: the text may quote a value, and a value may be a secret."""
    error = event.pop("exc_info", None)
    error = sys.exc_info() if error is True else error
    error = (type(error), error, error.__traceback__) if isinstance(error, BaseException) else error
    if error and error[0] is not None:
        event["exception"] = "".join(traceback.format_tb(error[2])) + error[0].__qualname__
    return event


def _renderers(settings: Settings) -> list[Any]:
    last = (
        [structlog.processors.JSONRenderer()]
        if settings.log_format == "json"
        else [_escape, structlog.dev.ConsoleRenderer(colors=sys.stdout.isatty(), pad_event_to=0)]
    )
    return [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]


def _escape(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
    """Escape what a terminal executes, and line breaks except those of traces: a value may be of a request."""
    return {name: _escaped(value, lines=name in TRACES) for name, value in event.items()}


def _escaped(value: Any, *, lines: bool) -> str:
    text = value if isinstance(value, str) else repr(value)
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(each if each.isprintable() or each in kept else ascii(each)[1:-1] for each in text)


def _naming(name: str) -> Any:
    def add_name(_logger: Any, _method: str, event: dict[str, Any]) -> dict[str, Any]:
        event["process"] = name
        return event

    return add_name
