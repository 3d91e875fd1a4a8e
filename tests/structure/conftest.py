"""A worker with an engine in memory, as in its own tests."""

from tests.worker.conftest import context, engine

__all__ = ["context", "engine"]
