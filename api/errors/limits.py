"""The error of a request that exceeds a limit of its sender; `api.errors.handlers` maps it to a 429."""

from collections.abc import Mapping

from shared.errors import WorkspaceError


class TooManyRequests(WorkspaceError):
    """The sender has reached a limit; it may retry after `retry_seconds`. `headers` are for the response."""

    def __init__(self, text: str, retry_seconds: int = 1, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.retry_seconds = retry_seconds
        self.headers = {"Retry-After": str(retry_seconds)} | dict(headers or {})
