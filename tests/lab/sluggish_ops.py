"""The same operator, slow enough to be interrupted, in a list of OpSpecs."""

from __future__ import annotations

import time

from torch import Tensor
from toy_ops import right, spec, tell_pid


def slow(x: Tensor, scale: float) -> Tensor:
    tell_pid()
    time.sleep(0.1)
    return right(x, scale)


SPECS = [spec("sluggish", slow)]
