"""What API and worker share about agent servers: paths, limits, errors, shapes, and the reader of all responses."""
