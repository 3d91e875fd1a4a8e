"""After a power loss, an engine has its disk and no files in memory."""

from tests.services.engine import TINY_IMAGE
from tests.services.power import cut_power
from tests.services.private_engine import PrivateEngine


def test_container_starts_again_and_nothing_of_its_shim_is_left(engine: PrivateEngine) -> None:
    engine.docker("run", "--detach", "--name", "lamp", TINY_IMAGE)
    shims = engine.data.with_name("exec") / "containerd" / "daemon" / "io.containerd.runtime.v2.task" / "moby"
    assert list(shims.iterdir())
    cut_power(engine)
    left = shims.exists()
    engine.start()
    engine.docker("start", "lamp")
    assert engine.docker("inspect", "--format", "{{.State.Running}}", "lamp").strip() == "true"
    assert not left
