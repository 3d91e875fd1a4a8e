"""The HTTP server: its sockets, its connection limits and its graceful shutdown."""
