"""Routes: one module for each noun, each with a `router`."""
