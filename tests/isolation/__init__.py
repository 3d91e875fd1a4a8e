"""Attacks on the service's boundaries. Each has a control in the same test, which succeeds without the boundary."""
