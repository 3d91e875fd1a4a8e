"""The engine filter without an engine: how it parses requests and forwards responses."""
