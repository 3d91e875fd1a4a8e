"""Waits for changes of rows, and streams of changes."""
