"""Output of containers: its lines, bounded and without secrets, and the rows that store them."""
