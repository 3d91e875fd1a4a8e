"""The pages of operators at `/admin`, and Flower below them."""
