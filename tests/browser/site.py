"""The location of the web UI, and the browser's arguments to reach it."""

from tests.services.directories import REPOSITORY

CANVAS = REPOSITORY / "var" / "canvas"
CHROMIUM = REPOSITORY / "tests" / "browser" / "chromium.py"
# Not a loopback name: with other names, the web UI is stricter and browsers send less.
HOST = "agents.example"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    f"--host-resolver-rules=MAP {HOST} 127.0.0.1",
]
