"""A node's door: HAProxy between the service and the sandboxes of the node, in both directions (decision 54)."""
