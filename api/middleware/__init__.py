"""ASGI middleware, applied to every request before routing."""
