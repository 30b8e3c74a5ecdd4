"""The same operator, slow enough to be interrupted, in a list of OpSpecs."""

from __future__ import annotations

import os
import time
from pathlib import Path

from torch import Tensor
from toy_ops import right, spec


def slow(x: Tensor, scale: float) -> Tensor:
    if "TOY_PID_FILE" in os.environ:
        Path(os.environ["TOY_PID_FILE"]).write_text(str(os.getpid()))
    time.sleep(0.1)
    return right(x, scale)


SPECS = [spec("sluggish", slow)]
