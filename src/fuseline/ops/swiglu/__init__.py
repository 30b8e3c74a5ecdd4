"""SwiGLU: silu(a) * b."""

from fuseline.ops.swiglu.op import swiglu

__all__ = ["swiglu"]
