"""Limits of leases, also for settings: a process that only reads these imports no database."""

# The max length of a lease, and the max delay of `due_at`.
MAX_SECONDS = 15.0
