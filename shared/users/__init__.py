"""Users: keys, settings, secrets, sessions."""
