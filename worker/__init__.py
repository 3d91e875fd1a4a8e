"""The worker beside a Docker Engine: reconciles desired state and writes observed state."""
