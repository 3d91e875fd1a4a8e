"""Deletion of old rows that several rooms share."""
