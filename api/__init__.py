"""The HTTP API: thin routes over the store. It never calls an engine (law 9)."""
