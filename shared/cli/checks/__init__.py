"""Commands that show the state of the service and its machine, and explain reasons."""
