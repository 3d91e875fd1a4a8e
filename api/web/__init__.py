"""Pages for browsers: the web UI, the login and the device approval."""
