"""The real servers that tests talk to; each dies with the process that started it."""
