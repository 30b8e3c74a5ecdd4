"""Triton kernels where there is no GPU: compiled for one, or run by the interpreter."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import torch
import triton
from ops.forks import in_a_fork
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.tools.tensor_descriptor import TensorDescriptor

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
PINNED = re.search(r"^triton==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE)[1]
TYPES = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
}


def recorder():
    """An empty list, and a `wrap` that appends each launch (kernel, arguments, meta), runs none."""
    seen = []

    class Recorder:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            return lambda *args, **meta: seen.append((self.kernel, args, meta))

    return seen, Recorder


def compile_for_hopper(kernel, args, meta):
    """The kernel as a launch on 16-byte-aligned tensors would compile it for sm_90."""
    names = [p.name for p in kernel.params]
    values = dict(zip(names, args, strict=False)) | meta
    signature, constants, attributes = {}, {}, {}
    for i, parameter in enumerate(kernel.params):
        name, value = parameter.name, values[parameter.name]
        if parameter.is_constexpr or value is None:
            signature[name], constants[name] = "constexpr", value
        elif isinstance(value, TensorDescriptor):
            signature[name] = f"tensordesc<{TYPES[value.base.dtype]}{list(value.block_shape)}>"
        elif isinstance(value, torch.Tensor):
            signature[name] = "*" + (TYPES | {torch.uint8: "u8"})[value.dtype]
            attributes[(i,)] = [["tt.divisibility", 16]]
        else:
            signature[name] = "i32" if -(2**31) <= value < 2**31 else "i64"
    source = ASTSource(kernel, signature, constants, attributes)
    options = {name: meta[name] for name in ("num_warps", "num_stages") if name in meta}
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def resources(compiled, folder):
    """(registers, bytes of stack) of one thread; spilled registers live on the stack."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    cuobjdump = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    command = [cuobjdump, "--dump-resource-usage", cubin]
    usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    return int(found[1]), int(found[2])


def spills(stack, most=0):
    """Whether a thread has more bytes of stack than `most`, by the Triton that is pinned.

    A budget of its code: another's is as right and may spill (3.9: 8 bytes of add_rms_norm).
    """
    return triton.__version__ == PINNED and stack > most


def run_in_interpreter(name):
    """A file of cases in a process of its own: TRITON_INTERPRET counts when triton is imported."""
    cases = Path(__file__).with_name(name)
    in_a_fork({"TRITON_INTERPRET": "1"}, "ops.forks", "run_cases", str(cases))
