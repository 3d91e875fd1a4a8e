"""The load of a chaos run: what clients and agent servers ask of the service, and what its answers promised them."""

from tests.drills.chaos.workload.workload import Workload

__all__ = ["Workload"]
