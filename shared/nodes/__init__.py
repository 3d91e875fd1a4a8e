"""Nodes: heartbeats, placement, backoff."""
