"""The HTTP side: thin routes over the store. Never touches an engine (law 9)."""
