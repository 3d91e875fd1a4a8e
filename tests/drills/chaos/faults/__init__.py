"""The faults of the nemesis: each can be injected and healed, and names its kind and its target."""

from tests.drills.chaos.faults.bounds import DiskDetached, DoorFrozen, DoorKilled, RulesFlushed
from tests.drills.chaos.faults.containers import (
    ContainerKilled,
    ContainerPaused,
    ContainerRemoved,
    ContainerStarted,
    ContainerStopped,
    ContainerUnpaused,
    StaleContainerCreated,
)
from tests.drills.chaos.faults.engines import (
    DiskFull,
    EngineKilled,
    EngineRestarted,
    EngineStalled,
    PullFails,
    PullSlow,
)
from tests.drills.chaos.faults.fault import Fault, Missed
from tests.drills.chaos.faults.partitions import BrokerPartitioned, DatabasePartitioned
from tests.drills.chaos.faults.power import MachinePowerLost, NodePowerLost
from tests.drills.chaos.faults.processes import (
    ClockStepped,
    MachineClockStepped,
    ProcessFrozen,
    ProcessKilled,
    ServiceClocksStepped,
)
from tests.drills.chaos.faults.responses import (
    EverythingFails,
    ReadsFail,
    ResponsesCut,
    ResponsesDropped,
    ResponsesFail,
    ResponsesLate,
    ResponsesSwallowed,
    WritesFail,
)
from tests.drills.chaos.faults.stores import (
    BrokerFlushed,
    BrokerRestarted,
    BrokerStalled,
    DatabaseCrashed,
    DatabaseRestarted,
)

# Faults of the parts of a site. A kind that is listed more than once is injected more often.
PARTS: tuple[type[Fault], ...] = (
    ProcessKilled,
    ProcessKilled,
    ProcessKilled,
    ProcessFrozen,
    ProcessFrozen,
    ClockStepped,
    MachineClockStepped,
    ServiceClocksStepped,
    BrokerRestarted,
    BrokerStalled,
    BrokerFlushed,
    DatabaseRestarted,
    DatabaseCrashed,
    EngineRestarted,
    EngineKilled,
    EngineStalled,
    DiskFull,
    PullSlow,
    PullFails,
    NodePowerLost,
    MachinePowerLost,
    DoorKilled,
    DoorFrozen,
    RulesFlushed,
    DatabasePartitioned,
    BrokerPartitioned,
    ReadsFail,
    WritesFail,
    EverythingFails,
    ResponsesFail,
    ResponsesDropped,
    ResponsesCut,
    ResponsesLate,
    ResponsesSwallowed,
)
# Outside changes to containers.
CONTAINERS: tuple[type[Fault], ...] = (
    ContainerKilled,
    ContainerStopped,
    ContainerStarted,
    ContainerPaused,
    ContainerUnpaused,
    ContainerRemoved,
    StaleContainerCreated,
    DiskDetached,
)

__all__ = ["CONTAINERS", "PARTS", "Fault", "Missed"]
