"""Clients of git providers, with a user's own token."""
