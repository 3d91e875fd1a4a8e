"""The files of this node's sandboxes: a backup while they rest, and a restore beside a clean engine (decision 66)."""
