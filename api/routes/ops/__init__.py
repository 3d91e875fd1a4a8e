"""Routes for operators: health, metrics and the API description."""
