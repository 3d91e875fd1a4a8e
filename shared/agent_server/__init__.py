"""Agent servers' interface for API and worker: paths, limits, errors, response models, and the response reader."""
