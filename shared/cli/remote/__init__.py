"""Commands that speak to a service over HTTP, from any machine, as one of its users."""
