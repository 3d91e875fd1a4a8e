"""What clients of OpenHands V1 may rely on: its surface, as facts, and what real clients do."""
