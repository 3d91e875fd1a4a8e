"""The Docker Engine beside this worker."""
