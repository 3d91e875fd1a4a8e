"""Routes for the caller's account: login, devices, keys."""
