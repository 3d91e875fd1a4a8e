"""Dependencies of routes: the context, the caller, the idempotency key, bodies and waits."""
