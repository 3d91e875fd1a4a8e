"""Commands that run processes of the service, and bring another machine into it."""
