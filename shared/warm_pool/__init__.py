"""Warm pools: sizing, refilling and claiming warm sandboxes."""
