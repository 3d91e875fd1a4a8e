"""The engine filter without an engine: what it reads, and how it passes responses on."""
