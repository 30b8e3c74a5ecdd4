"""What the checker asks of an implementation, by subject."""
