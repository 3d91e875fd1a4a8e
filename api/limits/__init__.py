"""Limits on each address, sandbox and user within a process."""
