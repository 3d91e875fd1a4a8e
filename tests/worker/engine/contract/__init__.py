"""The engine's contract, on the real engine with the tiny image and on the fake."""
