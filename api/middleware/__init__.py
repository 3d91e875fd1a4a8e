"""What is done to every request before routing."""
