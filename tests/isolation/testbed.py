"""The service with two users, their sandboxes of the real image, and the targets that these could attack."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from shared.sandboxes import specs
from tests.isolation.attack import Attack, Outcome
from tests.isolation.facts import facts_of_sandboxes, facts_of_service, start_surroundings, store_work
from tests.isolation.places import PROBES, Batches, all_attempts, commands_of_machine, running_batches
from tests.isolation.surroundings import PUBLIC, other_machine, route_to
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.engine import SANDBOX_IMAGE, TINY_IMAGE
from tests.services.private_engine import PrivateEngine
from tests.services.slots import is_unused, taken_slot

HOSTILE_IMAGE = "agent-workspace/hostile:test"
# The real image, with a spec without egress, and with a small agent server: attacks from there are on other parts.
CLOSED_IMAGE = "agent-workspace/closed:test"
SMALL_SERVER = '["/opt/agent-server/bin/init", "-s", "--", "python3", "/hostile.py"]'
# Small, so that attacks on limits are fast.
LIMITS = {"memory_bytes": 1024**3, "pids": 256}
# Small, so that floods are short.
SETTINGS = {
    "AW_HEALTH_TIMEOUT": "600",  # the machine is busy
    "AW_HEAD_SECONDS": "3",
    "AW_BODY_SECONDS": "3",
    "AW_RATE_WEBHOOKS": "100",
    "AW_RATE_WRONG_KEYS": "100",
    "AW_QUOTA_EVENT_BYTES": "20000000",
}
# Network isolation and disks as by default, but with a name server of the tests and small disks.
RULES = {"AW_NETWORK_ISOLATION": "on", "AW_SANDBOX_DNS": PUBLIC, "AW_SANDBOX_DISK_BYTES": str(512 * 1024**2)}
BOOT_SECONDS = 600
PLAIN = ("plain", "peer")


class AttackTestbed:
    """The outcomes of attacks and controls."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def outcomes(self, attack: Attack) -> tuple[Outcome, Outcome]:
        """The outcomes of the attack and of its control."""
        return self._batches.outcome(attack.probe), self._batches.outcome(attack.control)


@contextmanager
def opened_testbed(service: Deployment, engine: PrivateEngine, attacks: list[Attack]) -> Iterator[AttackTestbed]:
    """Start the testbed, for the length of the block."""
    with ExitStack() as stack:
        alice, bob = (stack.enter_context(service.user(name)) for name in ("alice", "bob"))
        metrics_key = service.make_metrics_key()
        slot = stack.enter_context(taken_slot(lambda one: is_unused(one.network)))
        service.environment |= SETTINGS
        service.start_api()
        service.start_worker(**RULES, AW_SANDBOX_ADDRESSES=str(slot.network))
        sandboxes = _boot(service, engine, alice, bob)
        facts = {"metrics_key": metrics_key}
        facts |= facts_of_service(service, engine) | facts_of_sandboxes(service, engine, sandboxes)
        facts |= store_work(service, engine, alice, bob, facts)
        bridges = {str(route_to(facts[f"{name}_ip"])["dev"]) for name in ("A", "B", "plain")}
        lan = stack.enter_context(other_machine(sorted(bridges)))
        facts |= start_surroundings(stack, engine, facts, lan)
        containers = {**{name: f"aw-{one}" for name, one in sandboxes.items()}, **{name: name for name in PLAIN}}
        commands = commands_of_machine(lan.namespace) | {
            name: ["docker", "--host", engine.host, "exec", "-i", container, "python3"]
            for name, container in containers.items()
        }
        yield AttackTestbed(stack.enter_context(running_batches(all_attempts(attacks), facts, commands)))


def _boot(service: Deployment, engine: PrivateEngine, alice: Client, bob: Client) -> dict[str, str]:
    """Start all sandboxes, and two plain containers beside them; return the sandboxes' ids by their names."""
    options = ["--detach", "--user=0", "--security-opt=seccomp=unconfined", f"--dns={PUBLIC}"]
    for name in PLAIN:
        port = [f"--publish={engine.address}::5000"] if name == "peer" else []
        engine.docker("run", *options, *port, f"--name={name}", "--entrypoint=sleep", SANDBOX_IMAGE, "1200")
    engine.docker("cp", str(PROBES / "hostile.py"), "plain:/hostile.py")
    engine.docker("commit", '--change=ENTRYPOINT ["python3", "/hostile.py"]', "plain", HOSTILE_IMAGE)
    service.add_spec(HOSTILE_IMAGE, {})
    changes = [f"--change=ENTRYPOINT {SMALL_SERVER}", "--change=USER agent"]
    engine.docker("commit", *changes, "plain", CLOSED_IMAGE)
    service.add_spec(CLOSED_IMAGE, {})
    with service.database.transaction() as session:
        specs.change(session, SANDBOX_IMAGE, LIMITS)
        specs.change(session, CLOSED_IMAGE, {**LIMITS, "egress": "none"})
    wanted = {"A": (alice, None), "A2": (alice, CLOSED_IMAGE), "B": (bob, None), "H": (alice, HOSTILE_IMAGE)}
    wanted |= {"paused": (alice, TINY_IMAGE), "deleted": (alice, TINY_IMAGE)}
    ids = {name: client.start_sandbox(spec) for name, (client, spec) in wanted.items()}

    def wait(name: str) -> None:
        wanted[name][0].await_sandbox(ids[name], "RUNNING", deadline_seconds=BOOT_SECONDS)

    with ThreadPoolExecutor() as threads:
        list(threads.map(wait, ids))
    return ids
