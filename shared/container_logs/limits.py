"""Limits of stored container logs. Commands import them without the rest of the package, which is slow to import."""

# The maximum size of one container's stored log, times included.
MAX_BYTES = 64 * 1024
# No stored log has more lines: a worker requests this number from the engine.
MAX_LINES = 1000
