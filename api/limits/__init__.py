"""Limits on what one address, one sandbox or one user may take of a process."""
