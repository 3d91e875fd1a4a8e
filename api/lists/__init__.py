"""Lists, and the cache of their responses."""
