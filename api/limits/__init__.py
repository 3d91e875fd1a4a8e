"""Limits on the share of a process that one address, one sandbox or one user may use."""
