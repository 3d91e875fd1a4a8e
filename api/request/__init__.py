"""What a route needs to know of a request: the caller, the key, the body, the wait."""
