"""Commands that run the service's processes, and that join another machine."""
