"""The demo of `make demo`: a scripted model, and a conversation shown in the terminal."""
