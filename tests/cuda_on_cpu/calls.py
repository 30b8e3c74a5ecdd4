"""What tests here call: libraries of kernels for the CPU, with tensors and numbers."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

F32, F64, BF16 = torch.float32, torch.float64, torch.bfloat16
NAMES = {F32: "f32", F64: "f64", BF16: "bf16"}


def library_fixture(name: str) -> Any:
    return pytest.fixture(scope="module", name=name)(lambda build: build(name))


def call(library, name: str, tensors: list[Tensor | None], numbers: list[float]) -> None:
    pointers = [ctypes.c_void_p(None if t is None else t.data_ptr()) for t in tensors]
    as_c = [ctypes.c_double(v) if isinstance(v, float) else ctypes.c_int64(v) for v in numbers]
    getattr(library, name)(*pointers, *as_c)


def wide(t: Tensor) -> np.ndarray:
    return t.double().numpy().astype(np.longdouble)


def rows(shape, dtype, mean=0.0, spread=1.0, stride=None) -> Tensor:
    """Rows that begin an element off a multiple of 16 bytes if they have a stride of their own."""
    count, n = shape
    x = mean + spread * torch.randn(shape, dtype=F64)
    storage = torch.empty(1 + count * (stride or n), dtype=dtype)
    view = storage[1 if stride else 0 :].as_strided(shape, (stride or n, 1), 1 if stride else 0)
    return view.copy_(x)
