"""The network of a node's sandboxes: its addresses, its firewall rules, and their maintenance (decision 53)."""
