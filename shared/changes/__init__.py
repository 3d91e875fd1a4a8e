"""The change feed: recording changes and publishing them."""
