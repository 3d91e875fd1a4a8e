"""The network of a node's sandboxes: its place, its firewall rules, and who keeps both (decision 53)."""
