"""A node's egress proxy: Squid, by which sandboxes reach the host names of their specs' egress (decision 60)."""
