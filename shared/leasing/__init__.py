"""Leases on rows, and the rows that wait for a sandbox."""
