"""What operators see and do at `/admin`, across all users. Every read is bounded, regardless of how much is stored."""
