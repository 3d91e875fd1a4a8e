"""V0's routes, deprecated."""
