"""Runs probes, each in a process of its own, and prints one JSON line for each.

The text of this file comes before a probe file's, without the latter's import of this one, and a call of `run_jobs`
after it: all are one program, for `python3 -`. A probe returns whether the attack had its effect, and its evidence.
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
# Probes that run at a time; files whose probes need the machine to themselves set 1.
PARALLEL = 32
PROBE_SECONDS = 60.0


def run_jobs(jobs: list[tuple[str, dict[str, Any]]]) -> None:
    """Run functions with their arguments, as many at a time as may be; the next one begins when one has ended."""
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
    """Wait for the first of these pipes with a report, or without one at its deadline."""
    nearest = min(deadline for _, _, deadline in running.values())
    ready = select.select(list(running), [], [], max(0.0, nearest - time.monotonic()))[0]
    return ready or [pipe for pipe, (_, _, deadline) in running.items() if deadline <= nearest]


def start(function: str, arguments: dict[str, Any]) -> tuple[int, int]:
    """Fork a child that runs the probe; its number and the pipe with its outcome."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    try:
        report = judge(function, arguments)
        os.write(writing, json.dumps(report).encode()[:60_000])
    finally:
        os._exit(0)


def judge(function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The outcome; an OSError is a refusal, anything else that is raised is a defect of the probe."""
    try:
        reached, evidence = globals()[function](**arguments)
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0) or type(error).__name__
        return {"reached": False, "evidence": f"{name}: {error}"[:300]}
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is reported
        return {"reached": False, "evidence": f"{type(error).__name__}: {error}"[:300], "broken": True}
    return {"reached": bool(reached), "evidence": str(evidence)[:300]}


def collect(child: int, pipe: int, deadline: float) -> dict[str, Any]:
    """A child's report; one that is killed by a signal, or says nothing in time, has not reached its aim."""
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
    ended = f"killed by signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "no report"
    return {"reached": False, "evidence": ended}


def agent_server() -> int:
    """The number of the agent server's process, below the container's first process.

    Raises:
        FileNotFoundError: there is none, or none that can be seen.
    """
    for one in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{one}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
            if b"--port" in words and b"init" not in words[0]:
                return int(one)
    raise FileNotFoundError(errno.ENOENT, "no agent server")
