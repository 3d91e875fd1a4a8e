"""Alert rules and dashboard: Prometheus' own tool loads them, and they use only metrics that exist."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from api.middleware import responses
from api.routes.ops.store_gauges import read_gauges
from shared.db.database import Database
from shared.observability import metrics

REPOSITORY = Path(__file__).parents[3]
ALERTS, DASHBOARD = (REPOSITORY / "deploy/monitoring" / name for name in ("alerts.yml", "dashboard.json"))
NAME = re.compile(r"\bagent_workspace_\w+")
# The variables that Grafana replaces in a query.
INTERVAL = "$__rate_interval"
# The fields of a panel that Grafana's schema of dashboards requires.
PANEL = {"id", "type", "title", "gridPos"}


def promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def names(database: Database) -> set[str]:
    """The names of all samples that a scrape may have."""
    assert responses.SECONDS, "the metrics of HTTP are registered with this module"
    return {*metrics.OWN._names_to_collectors, *(family.name for family in read_gauges(database))}


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def queries() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def test_alert_rules_are_loaded_and_each_fires_in_its_case() -> None:
    assert "rules found" in promtool("check", "rules", str(ALERTS))
    promtool("test", "rules", str(Path(__file__).parent / "rules.yml"))


def test_queries_of_the_dashboard_are_promql(tmp_path: Path) -> None:
    rules = [
        {"record": f"query_{number}", "expr": text.replace(INTERVAL, "5m")} for number, text in enumerate(queries())
    ]
    path = tmp_path / "rules.json"  # JSON is YAML
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    assert f"{len(rules)} rules found" in promtool("check", "rules", str(path))


def test_alerts_and_dashboard_use_only_metrics_that_exist(names: set[str]) -> None:
    used = set(NAME.findall(ALERTS.read_text() + "".join(queries())))
    assert used - names == set()
    assert len(used) > 20


def test_dashboard_shows_every_metric(names: set[str]) -> None:
    shown = {re.sub("_(bucket|sum|count|total)$", "", name) for name in NAME.findall("".join(queries()))}
    exist = {re.sub("_(bucket|sum|count|total|created)$", "", name) for name in names}
    assert exist - shown == set()


def test_every_metric_is_documented(names: set[str]) -> None:
    documented = set(NAME.findall((REPOSITORY / "docs/operate/monitoring.md").read_text()))
    missing = {name for name in names if not name.endswith(("_created", "_bucket", "_sum", "_count"))} - documented
    assert {name for name in missing if f"{name}_total" not in documented} == set()


def test_dashboard_has_the_shape_that_grafana_requires() -> None:
    found = dashboard()
    assert {"uid", "title", "schemaVersion", "templating", "time"} <= found.keys()
    ids = [panel["id"] for panel in found["panels"]]
    assert len(set(ids)) == len(ids)
    places: set[tuple[int, int]] = set()
    for panel in found["panels"]:
        assert panel.keys() >= PANEL
        place = panel["gridPos"]
        covered = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not covered & places, panel["title"]
        assert place["x"] + place["w"] <= 24
        places |= covered
        assert len({target["refId"] for target in panel.get("targets", ())}) == len(panel.get("targets", ()))
