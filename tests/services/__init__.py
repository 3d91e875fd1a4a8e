"""The real servers that tests use; each dies with the process that started it."""
