"""Error responses and their OpenAPI descriptions."""
