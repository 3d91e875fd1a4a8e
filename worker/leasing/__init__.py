"""Lease renewal, and limits on the work that runs under leases."""
