"""The machine's engine for tests."""

import os

# As in deploy/setup.
ENGINE = os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
# Otherwise, `docker` would use the engine of the user's context.
os.environ["DOCKER_HOST"] = ENGINE
