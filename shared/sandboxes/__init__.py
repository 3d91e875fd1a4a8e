"""Sandboxes in the store: desired and observed state, deadlines, quotas."""
