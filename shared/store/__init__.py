"""All SQL: one file a noun, functions that take an open session and never commit."""
