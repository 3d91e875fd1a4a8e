"""The load of a chaos run: the requests of clients and agent servers, and the responses that they got."""

from tests.drills.chaos.workload.workload import Workload

__all__ = ["Workload"]
