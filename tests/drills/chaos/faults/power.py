"""Power losses: all processes of a node, or of the whole machine, end at the same time."""

from tests.drills.chaos.faults.engines import EngineFault
from tests.drills.chaos.faults.fault import Fault
from tests.drills.chaos.site import APIS, NODES, WORKERS, door_of
from tests.services.power import cut_power


class NodePowerLost(EngineFault):
    """The power loss of a node: its engine, containers, workers and door."""

    seconds = (0.0, 4.0)

    def inject(self) -> None:
        for process in (*self._workers(), door_of(self.subject)):
            self.site.service.kill(process)
        cut_power(self.site.engines[self.subject])

    def heal(self) -> None:
        self.site.engines[self.subject].start()
        for worker in self._workers():
            self.site.start_process(worker)

    def _workers(self) -> list[str]:
        return [worker for worker, node in WORKERS.items() if node == self.subject]


class MachinePowerLost(Fault):
    """The power loss of the machine: both nodes with their doors, the API processes, the broker and the database."""

    seconds = (0.0, 2.0)

    def inject(self) -> None:
        for process in (*WORKERS, *map(door_of, NODES), *APIS):
            self.site.service.kill(process)
        self.site.valkey.kill()
        if self.site.postgres:
            self.site.postgres.crash()
        for node in NODES:
            cut_power(self.site.engines[node])

    def heal(self) -> None:
        if self.site.postgres:
            self.site.postgres.start()
        self.site.valkey.start()
        for node in NODES:
            self.site.engines[node].start()
        for process in (*APIS, *WORKERS):
            self.site.start_process(process)
