"""A node's egress proxy: Squid, through which sandboxes reach the host names of their specs' egress (decision 60)."""
