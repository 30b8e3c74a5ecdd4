"""What follows the convolution of conv_add in Triton, forward and backward."""

from fuseline.primitives.triton.channels import epilogue, gradient

__all__ = ["epilogue", "gradient"]
