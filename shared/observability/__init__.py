"""Logs, metrics, traces and failpoints."""
