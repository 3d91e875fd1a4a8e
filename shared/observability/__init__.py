"""Logs, metrics and failpoints."""
