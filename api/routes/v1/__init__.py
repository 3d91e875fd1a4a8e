"""V1's routes."""
