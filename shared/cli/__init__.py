"""The command line `agent-workspace`."""
