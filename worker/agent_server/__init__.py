"""The worker's client for agent servers."""
