"""V1's request and response bodies."""
