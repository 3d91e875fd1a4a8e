"""The engine filter: a proxy that forwards only a worker's own requests to the Docker Engine (decision 58)."""
