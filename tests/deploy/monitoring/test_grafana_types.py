"""The dashboard, parsed by the types that Grafana's developers generate from its schemas. Grafana itself is not run."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.monitoring.test_monitoring import DASHBOARD

pytestmark = pytest.mark.nightly  # the test downloads the types
TYPES = "grafana-foundation-sdk==1769699998!10.1.0"
UV = Path(sys.executable).with_name("uv")
# Parses a dashboard with the queries and options of its panels, and prints it as the types serialize it.
READ = """
import json, sys
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
register_default_plugins()
json.dump(Dashboard.from_json(json.load(sys.stdin)), sys.stdout, cls=JSONEncoder)
"""


@pytest.fixture
def types(tmp_path: Path) -> Path:
    subprocess.run([UV, "pip", "install", "--target", tmp_path, TYPES], check=True, capture_output=True, timeout=300)
    return tmp_path


def test_dashboard_survives_a_round_trip_through_grafana_s_types(types: Path) -> None:
    written = json.loads(DASHBOARD.read_text())
    assert lost(written, read(written, types)) == []
    misspelt = written | {"panels": [written["panels"][1] | {"gridPost": {}}]}
    assert lost(misspelt, read(misspelt, types)) == ["/panels/0/gridPost"]


def read(written: dict[str, Any], types: Path) -> dict[str, Any]:
    command = [sys.executable, "-c", READ]
    done = subprocess.run(
        command, input=json.dumps(written), env={"PYTHONPATH": str(types)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def lost(written: Any, found: Any, place: str = "") -> list[str]:
    """The locations of differences."""
    if isinstance(written, dict) and isinstance(found, dict):
        pairs = [(value, found.get(name), f"{place}/{name}") for name, value in written.items()]
    elif isinstance(written, list) and isinstance(found, list) and len(written) == len(found):
        pairs = [(*both, f"{place}/{number}") for number, both in enumerate(zip(written, found, strict=True))]
    else:
        return [] if written == found else [place]
    return [different for pair in pairs for different in lost(*pair)]
