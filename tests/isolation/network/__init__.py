"""Tests of the addresses that sandboxes reach, and of the access to sandboxes."""
