"""Fixtures that tests of routes have too."""

from tests.api.conftest import conversation, sandbox, tell

__all__ = ["conversation", "sandbox", "tell"]
