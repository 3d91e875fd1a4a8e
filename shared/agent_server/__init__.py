"""What API and worker know of agent servers: paths, limits, errors, shapes, and the reader of all responses."""
