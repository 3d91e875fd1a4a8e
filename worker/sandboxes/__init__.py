"""Reconciling a sandbox's container with its desired state."""
