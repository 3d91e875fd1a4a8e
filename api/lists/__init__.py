"""List routes and the cache of their responses."""
