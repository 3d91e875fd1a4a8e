"""Conversations in the store: starts, events, messages, deletion."""
