"""A node's disk that is full while a sandbox writes: the sandbox can write again once there is space."""

from contextlib import suppress

from shared.sandboxes import specs
from tests.integration.nodes.cluster import A, Cluster, start_many
from tests.services.client import Client
from tests.services.engine import TINY_IMAGE
from tests.waiting import eventually
from worker.engine.disk_images import MIN_BYTES

# Waits until the kernel has written to the node's disk.
WRITE = 'cd /workspace/project && mkdir "$(cat /proc/sys/kernel/random/uuid)" && sync'


def test_sandbox_can_write_again_once_its_nodes_disk_has_space(cluster: Cluster, alice: Client) -> None:
    with cluster.service.database.transaction() as session:
        specs.change(session, TINY_IMAGE, {"disk_bytes": MIN_BYTES})
    (sandbox_id,) = start_many(alice, 1)
    engine, container = cluster.engines[A], f"aw-{sandbox_id}"
    assert cluster.node_of(sandbox_id) == A

    def run(script: str) -> str:
        return engine.docker("exec", container, "sh", "-c", script)

    def read_id() -> str:
        with suppress(AssertionError):
            return engine.docker("inspect", "--format", "{{.Id}}", container)
        return ""

    run(f"echo precious >/workspace/project/kept && {WRITE}")
    former = read_id()
    engine.fill_disk()
    with suppress(AssertionError):  # the kernel reports the full disk
        run(WRITE)
    engine.free_disk()
    with suppress(AssertionError):  # and then, unless the worker has restarted the sandbox, a read-only file system
        run(WRITE)
    eventually(lambda: read_id() not in ("", former))
    alice.await_sandbox(sandbox_id, "RUNNING")
    run(WRITE)
    assert run("cat /workspace/project/kept") == "precious\n"
