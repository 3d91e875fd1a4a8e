"""The interface that this service was built for: its promises, and their requests to a deployment."""
