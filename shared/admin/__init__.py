"""What operators see and do at `/admin`, across all users. Every read has a bound, whatever the store holds."""
