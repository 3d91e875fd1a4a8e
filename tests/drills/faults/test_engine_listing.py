"""The listing of a real engine includes containers and volumes without labels, and with any name."""

from tests.drills.attribution import attribute
from tests.drills.engine_listing import INSTALLATION_LABEL, SANDBOX_LABEL, list_holdings, sandbox_name
from tests.drills.engine_socket import EngineSocket
from tests.services.engine import TINY_IMAGE
from tests.services.private_engine import PrivateEngine

INSTALLATION = "test-listing"
LABELS = ("--label", f"{INSTALLATION_LABEL}={INSTALLATION}", "--label", f"{SANDBOX_LABEL}=s")


def test_container_and_volume_without_labels_are_seen(engine: PrivateEngine) -> None:
    name = sandbox_name("s")
    try:
        engine.docker("volume", "create", "unlabelled")
        engine.docker("volume", "create", *LABELS, name)
        engine.docker("create", "--name", "unlabelled", TINY_IMAGE)
        engine.docker("run", "--detach", "--name", name, *LABELS, TINY_IMAGE)
        engine.docker("pause", name)
        polled, listed = EngineSocket(engine.host).holdings(), list_holdings(engine)
        assert sorted(polled.containers, key=str) == sorted(listed.containers, key=str)
        assert sorted(polled.volumes, key=str) == sorted(listed.volumes, key=str)
        for inspect in (False, True):
            found = attribute(list_holdings(engine, inspect=inspect), INSTALLATION, ["s"])
            assert [(item.name, item.state) for item in found.containers] == [(name, "paused")]
            assert [item.name for item in found.volumes] == [name]
            assert {"container unlabelled", "volume unlabelled"} <= {
                " ".join(words.split()[:2]) for words in found.strays
            }
    finally:
        engine.docker("rm", "--force", "unlabelled", name)
        engine.docker("volume", "rm", "unlabelled", name)
