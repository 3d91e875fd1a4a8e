"""Commands that use a service over HTTP, from any machine, as one of its users."""
