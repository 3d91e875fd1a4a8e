"""Git providers, asked with a user's own token."""
