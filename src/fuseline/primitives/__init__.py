"""What at least two operators use inside their kernels, or around them."""
