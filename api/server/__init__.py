"""The HTTP server: its sockets, its connections and an orderly shutdown."""
