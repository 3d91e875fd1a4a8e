"""The API's client for agent servers."""
