"""Keeping leases, and bounding what runs under them."""
