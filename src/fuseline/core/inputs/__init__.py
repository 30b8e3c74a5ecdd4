"""What operators check of their arguments, and how they view, batch and refuse them."""
