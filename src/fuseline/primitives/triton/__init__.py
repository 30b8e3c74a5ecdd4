"""For operators in Triton."""
