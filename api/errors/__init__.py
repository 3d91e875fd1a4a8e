"""Errors as responses, and their description in OpenAPI."""
