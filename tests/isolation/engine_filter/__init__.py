"""What a compromised worker can do to its machine through the engine filter."""
