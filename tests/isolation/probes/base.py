"""Runs probes, each in its own process, and prints one JSON line for each.

A program for `python3 -` consists of this file, a probe file without its import of this file, and a call of `run_jobs`.
A probe returns whether the attack succeeded, and the evidence.
"""

import contextlib
import errno
import json
import os
import select
import signal
import time
from typing import Any

Outcome = tuple[bool, str]
# The number of concurrent probes; files whose probes must run alone set 1.
PARALLEL = 32
PROBE_SECONDS = 60.0
# The signals by which a system call filter and the limit of memory end a probe. Any other is a defect of the probe.
REFUSALS = (signal.SIGSYS, signal.SIGKILL)


def run_jobs(jobs: list[tuple[str, dict[str, Any]]]) -> None:
    """Run functions with their arguments, up to the limit at a time."""
    left = list(enumerate(jobs))
    running: dict[int, tuple[int, int, float]] = {}
    while left or running:
        while left and len(running) < PARALLEL:
            number, job = left.pop(0)
            child, pipe = start(*job)
            running[pipe] = number, child, time.monotonic() + PROBE_SECONDS
        for pipe in await_ended(running):
            number, child, deadline = running.pop(pipe)
            print(json.dumps({"number": number, **collect(child, pipe, deadline)}), flush=True)


def await_ended(running: dict[int, tuple[int, int, float]]) -> list[int]:
    """Wait for the first pipe with a report or a passed deadline."""
    nearest = min(deadline for _, _, deadline in running.values())
    ready = select.select(list(running), [], [], max(0.0, nearest - time.monotonic()))[0]
    return ready or [pipe for pipe, (_, _, deadline) in running.items() if deadline <= nearest]


def start(function: str, arguments: dict[str, Any]) -> tuple[int, int]:
    """Fork a child that runs the probe; return its pid and the pipe for its outcome."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    try:
        report = probe(function, arguments)
        os.write(writing, json.dumps(report).encode()[:60_000])
    finally:
        os._exit(0)


def probe(function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Run a probe; return its outcome. An OSError is a refusal, any other error a defect of the probe."""
    try:
        reached, evidence = globals()[function](**arguments)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0) or type(error).__name__
        return {"reached": False, "evidence": f"{name}: {error}"[:300]}
    except BaseException as error:  # noqa: BLE001 - every error is reported
        return {"reached": False, "evidence": f"{type(error).__name__}: {error}"[:300], "broken": True}
    return {"reached": bool(reached), "evidence": str(evidence)[:300]}


def collect(child: int, pipe: int, deadline: float) -> dict[str, Any]:
    """Read a child's report. A child that is killed or sends nothing in time has failed."""
    text = b""
    while select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
        part = os.read(pipe, 65_536)
        if not part:
            break
        text += part
    else:
        os.kill(child, signal.SIGKILL)
        text = json.dumps({"reached": False, "evidence": "no outcome in time", "broken": True}).encode()
    os.close(pipe)
    _, status = os.waitpid(child, 0)
    if text:
        report: dict[str, Any] = json.loads(text)
        return report
    killed_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    ended = "no report" if killed_by is None else f"killed by signal {killed_by}"
    return {"reached": False, "evidence": ended, "broken": killed_by not in REFUSALS}


def agent_server() -> int:
    """The pid of the agent server, a child of the container's first process.

    Raises:
        LookupError: no such process is visible. An OSError would count as a refusal, and each attack as blocked.
    """
    for one in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{one}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
            if b"--port" in words and b"init" not in words[0]:
                return int(one)
    raise LookupError("no agent server")
