"""RMSNorm bound the classic way: _C has pybind11's functions; torch.ops.rmsnorm_classic."""

import torch  # noqa: F401  its libraries first: the extension needs them

from rmsnorm_classic import _C

__all__ = ["_C"]
