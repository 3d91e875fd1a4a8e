"""Waiting for changes of rows, and streaming them."""
