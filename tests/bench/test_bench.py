"""The benchmarks as commands: their output, their files, and their cleanup."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bench import peer
from tests.bench.__main__ import MEASURES
from tests.bench.machine import describe
from tests.services.deployment import Deployment, deployed
from tests.services.directories import REPOSITORY
from tests.services.engine import TINY_IMAGE, docker_engine, name_installation
from tests.services.machine_engine import machine_engine
from tests.services.stores import SqliteStores
from tests.waiting import eventually

OWN = {
    "queue: publish to done, no-op task": "ms",
    "memory of API, worker and broker": "MB",
}
PEER = {
    "start, POST to RUNNING": "ms",
    "pause": "ms",
    "resume": "ms",
    "list of sandboxes, now and then": "ms",
    "list of sandboxes, one client": "1/s",
    f"list of sandboxes, {peer.CLIENTS} clients": "1/s",
    "list of conversations, now and then": "ms",
    "list of conversations, one client": "1/s",
    f"list of conversations, {peer.CLIENTS} clients": "1/s",
}


@pytest.fixture
def service(sqlite_stores: SqliteStores, broker_url: str) -> Iterator[Deployment]:
    """Agent Workspace beside the machine's engine, with the tiny image as its default."""
    installation = name_installation()
    with (
        machine_engine(installation) as engine,
        sqlite_stores.fresh() as url,
        deployed(engine, TINY_IMAGE, database_url=url, broker_url=broker_url, installation=installation) as service,
    ):
        service.start()
        yield service


def bench(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command of `make bench`."""
    command = [sys.executable, "-m", "tests.bench", *arguments]
    return subprocess.run(
        command, cwd=REPOSITORY, env=os.environ | environment, capture_output=True, text=True, check=False, timeout=200
    )


def rows(output: str) -> dict[str, list[str]]:
    """The cells of the table, by measure."""
    lines = [line for line in output.splitlines() if line.startswith("| ")]
    assert lines[0].startswith("| measure | p50 | p95 |")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]
    return {name: rest for name, *rest in cells}


def assert_kept(path: Path, subject: str, figures: dict[str, str], output: str) -> dict[str, Any]:
    """Assert that the file has the table's figures and a description of the machine; return the samples by name."""
    kept = json.loads(path.read_text())
    assert (kept["subject"], kept["machine"].keys()) == (subject, describe().keys())
    assert {figure["name"]: figure["unit"] for figure in kept["figures"]} == figures
    assert list(rows(output)) == [f"{name}, {unit}" for name, unit in figures.items()]
    samples = {figure["name"]: figure["runs"] for figure in kept["figures"]}
    assert all(value > 0 for runs in samples.values() for run in runs for value in run)
    assert all(cells[0] for cells in rows(output).values())
    return samples


@pytest.mark.nightly  # as all benchmarks
def test_parts_of_this_service_are_measured(tmp_path: Path) -> None:
    output = tmp_path / "found" / "own.json"
    measures = ["--only", "queue,memory", "--database", "sqlite", "--runs", "1"]
    done = bench(*measures, "--json", str(output))
    assert done.returncode == 0, done.stdout + done.stderr
    samples = assert_kept(output, "sqlite", OWN, done.stdout)
    assert [len(runs) for runs in samples.values()] == [1, 1]
    assert len(samples["queue: publish to done, no-op task"][0]) == 100
    queue = json.loads(output.read_text())["figures"][0]
    assert (queue["baseline"], len(queue["baseline_runs"][0])) == ("bare push and pop", 100)
    assert queue["p50"]["least"] <= queue["p50"]["median"] <= queue["p50"]["greatest"]


@pytest.mark.nightly  # as all benchmarks
def test_another_server_is_measured(service: Deployment, tmp_path: Path) -> None:
    output = tmp_path / "peer.json"
    with service.user("alice") as alice:
        short = ["--runs", "1", "--seconds", "0.3"]
        done = bench("--peer", service.url, *short, "--json", str(output), PEER_KEY=alice.user.key)
        assert done.returncode == 0, done.stdout + done.stderr
        samples = assert_kept(output, service.url, PEER, done.stdout)
        assert [len(samples[name][0]) for name in ("pause", "resume")] == [peer.PAUSES] * 2
        assert len(samples["list of sandboxes, now and then"][0]) == peer.LIST_REQUESTS
        assert alice.user.key not in done.stdout + done.stderr + output.read_text()
        assert alice.read("/api/v1/sandboxes/search")["items"] == []
    with docker_engine(service.installation) as engine:
        eventually(lambda: not engine.list_containers(service.installation))
        eventually(lambda: not engine.list_volumes(service.installation))


@pytest.mark.nightly  # as all benchmarks
def test_missing_key_is_reported(service: Deployment) -> None:
    done = bench("--peer", service.url, "--runs", "1", PEER_KEY="aw_wrong")
    assert done.returncode == 1
    assert "401 Unauthorized" in done.stderr


@pytest.mark.nightly  # as all benchmarks
def test_unknown_measure_is_refused_with_the_known_ones() -> None:
    done = bench("--only", "queue,speed")
    assert done.returncode == 2
    assert f"there is no speed; there are {', '.join(MEASURES)}" in " ".join(done.stderr.split())
    assert done.stdout == ""
