"""A run ends its stages after a signal, and is the only one in its checkout."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.directories import REPOSITORY
from tests.stages import __main__ as program
from tests.stages import plan
from tests.stages.__main__ import main
from tests.waiting import eventually

# A stage that takes a while to end after an interrupt.
STAGE = """
proceed() { until test -e ${0%/*}/proceed; do sleep 0.02; done; }
trap 'touch $0.interrupted; proceed; touch $0.ended; exit' INT
touch $0.began
proceed
"""
RUN = f"""
import sys
from pathlib import Path
from tests.stages import __main__, plan
__main__.LOGS = Path.cwd()
__main__.RUNS["unit"] = [[plan.program(name, "sh", "-c", {STAGE!r}, str(Path(name).absolute())) for name in "ab"]]
sys.exit(__main__.main(["unit"]))
"""
COMMAND = (sys.executable, "-c", RUN)
ENVIRONMENT = {"PYTHONPATH": str(REPOSITORY), "PATH": "/usr/bin:/bin"}


@pytest.fixture
def restore_signals() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
def test_stages_end_before_the_run_despite_a_second_signal(tmp_path: Path, number: signal.Signals) -> None:
    # A shell starts background commands with SIGINT ignored.
    command = ["env", "--default-signal=HUP,TERM", "sh", "-c", 'trap "" INT; exec "$@"', "sh", *COMMAND]
    stages = [tmp_path / name for name in "ab"]
    with subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT) as run:
        try:
            eventually(lambda: all(stage.with_suffix(".began").exists() for stage in stages))
            run.send_signal(number)
            eventually(lambda: all(stage.with_suffix(".interrupted").exists() for stage in stages))
            run.terminate()
        finally:
            (tmp_path / "proceed").touch()
    assert run.returncode == 128 + number
    assert all(stage.with_suffix(".ended").exists() for stage in stages)


@pytest.mark.usefixtures("restore_signals")
def test_run_under_nohup_ignores_hangups() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with pytest.raises(SystemExit, match="there is no part unknown"):
        main(["nightly", "unknown"])
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_second_run_in_a_checkout_fails_while_the_first_one_lives(tmp_path: Path) -> None:
    def run() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            COMMAND, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=60, check=False
        )

    with subprocess.Popen(COMMAND, cwd=tmp_path, env=ENVIRONMENT) as first:
        try:
            eventually((tmp_path / "a.began").exists)
            (tmp_path / "a.began").unlink()
            assert (second := run()).returncode == 1
            assert "another run writes to" in second.stderr
            assert not (tmp_path / "a.began").exists()
            first.kill()  # its stages live on
            first.wait()
        finally:
            (tmp_path / "proceed").touch()
    assert run().returncode == 0


@pytest.mark.usefixtures("restore_signals")
def test_nightly_part_that_fails_does_not_end_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad, good, other = plan.program("bad", "false"), plan.program("good", "true"), plan.program("other", "true")
    monkeypatch.setattr(plan, "nightly", lambda: {"first": [[bad], [other]], "second": [[good]]})
    monkeypatch.setattr(program, "LOGS", tmp_path)
    assert main(["nightly"]) == 1
    said = capsys.readouterr().out
    assert "NOT OK: bad; not run: other" in said
    assert "ok: good" in said
    assert said.endswith("2 parts; NOT OK: first\n")
