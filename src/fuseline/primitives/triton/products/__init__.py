"""Products of matrices with what follows them, forward and backward."""
