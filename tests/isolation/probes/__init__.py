"""Programs that run inside a sandbox, and for the controls elsewhere: each has the standard library only."""
