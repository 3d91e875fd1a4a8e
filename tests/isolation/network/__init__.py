"""What sandboxes reach, and what reaches them."""
