"""Backup of the files of this node's inactive sandboxes, and restore into a clean engine (decision 66)."""
