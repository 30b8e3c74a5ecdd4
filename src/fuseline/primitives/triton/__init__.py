"""For operators in Triton. This module itself does without it."""

from collections.abc import Callable
from typing import Any

# What a kernel goes through before its launch (fuseline.core.registration.contract.Kernels).
Wrap = Callable[[Any], Any]
