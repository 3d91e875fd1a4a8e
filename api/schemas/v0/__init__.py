"""V0's request and response bodies."""
