"""Spares the garbage collector what pytest and the modules keep until the end, and the tests a
fault of oneDNN's.
"""

import gc
import os
from pathlib import Path

# On a processor without AVX-512 torch 2.13's convolution_backward of channels_last tensors ends the
# process ("double free or corruption"); not where oneDNN keeps to AVX, which it reads here once.
_CPU = Path("/proc/cpuinfo")
if _CPU.exists() and "avx512f" not in _CPU.read_text():
    os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX")

# A million objects stay: walked again and again, they take half of collection's time and seconds
# of tests that have garbage collected.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()
