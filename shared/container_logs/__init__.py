"""What containers print: its lines, without secrets and bounded, and the rows that keep it."""
