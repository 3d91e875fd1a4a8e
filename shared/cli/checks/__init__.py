"""Commands that say how the service and its machine are, and what a reason means."""
