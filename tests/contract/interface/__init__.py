"""The interface that this service was built for: what it asks, and a run of it against a deployment."""
