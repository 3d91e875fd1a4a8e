"""Attacks of a compromised worker on its machine through the engine filter."""
