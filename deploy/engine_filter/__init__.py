"""The engine filter: a proxy that passes only a worker's own requests on to the Docker Engine (decision 58)."""
