"""Defects of the server that V1's clients use today (wire contract 6): a test for each one relevant to this service."""
