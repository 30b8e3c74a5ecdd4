"""What test_sharding runs in each process, over gloo or NCCL: operators on DTensors, beside
themselves, and the tasks of sharded_models.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from sharded_models import TASKS, whole
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from fuseline import table
from fuseline.core.specs.spec import Inputs, OpSpec
from fuseline.sharding.layouts import LAYOUTS

SMALL = 1 << 12  # elements of a case's largest tensor
CASES = 6  # of an operator


def cases(spec: OpSpec) -> list[Inputs]:
    """Return inputs of small cases, from all over the checker's list."""
    found = []
    for case in (case for case in spec.cases if "check" in case.suites):
        device = torch.get_default_device()
        made = spec.inputs(case, torch.float32, device, torch.Generator(device))
        if all(0 < t.numel() <= SMALL for t in made.values() if isinstance(t, Tensor)):
            found.append(made)
    return found[:: -(-len(found) // CASES)]


def ways(spec: OpSpec, inputs: Inputs) -> Iterator[dict[str, Any]]:
    """Return names with placements: all replicated, what has the shape of the first sharded by each
    of its dimensions and, where we have rules, not torch's own operators, all by their first.
    """
    tensors = {name: t for name, t in inputs.items() if isinstance(t, Tensor)}
    first = next(iter(tensors.values()))
    yield dict.fromkeys(tensors, Replicate())
    if spec.name in LAYOUTS:
        yield {name: Shard(0) if t.dim() else Replicate() for name, t in tensors.items()}
    # Between their parts are torch's own views and convolutions, which take fewer.
    few = {"multihead_attention": 0 if inputs.get("dropout") else 1, "conv_bn": 1}
    for dim in range(few.get(spec.name, first.dim())):
        yield {n: Shard(dim) if t.shape == first.shape else Replicate() for n, t in tensors.items()}


def results(spec: OpSpec, inputs: Inputs) -> list[Tensor]:
    """Return outputs and gradients, whole."""
    kinds = ("auto", torch.get_default_device().type, "triton", "chunks")
    name = next(n for n in kinds if n in {i.name for i in spec.implementations})
    leaves = [inputs[n].requires_grad_() for n in spec.differentiable if inputs[n] is not None]
    out = spec.implementation(name).fn(**inputs)
    outs = out if isinstance(out, tuple) else (out,)
    found = [whole(o) for o in outs]
    total = sum((o.float().square() * 0.5).sum() for o in found if o.requires_grad)
    if leaves:
        found += map(whole, torch.autograd.grad(total, leaves, allow_unused=True))
    return [t.detach().float() for t in found if t is not None]


def compare(spec: OpSpec, mesh: DeviceMesh) -> int:
    """Compare an operator in every way with itself on whole tensors; return how many there were."""
    count = 0
    for inputs in cases(spec):
        plain = {k: t.detach().clone() if isinstance(t, Tensor) else t for k, t in inputs.items()}
        wanted = results(spec, plain)
        for placements in ways(spec, inputs):
            given = {
                # Parts are contiguous, though distribute_tensor says of them what t is.
                k: distribute_tensor(t.contiguous(), mesh, [placements[k]])
                if isinstance(t, Tensor)
                else t
                for k, t in inputs.items()
            }
            try:
                torch.testing.assert_close(results(spec, given), wanted, rtol=1e-4, atol=1e-4)
            except Exception as error:
                shapes = {k: tuple(getattr(t, "shape", ())) or t for k, t in inputs.items()}
                raise AssertionError(f"{spec.name}: {placements} of {shapes}") from error
            count += 1
    return count


def member(rank: int, size: int, meeting: str, device: str, names: list[str]) -> bool:
    """Compare operators as one of a group of processes that meet in a file."""
    torch.set_num_threads(1)
    if device == "cuda":
        torch.cuda.set_device(rank)
    torch.backends.cudnn.allow_tf32 = False
    torch.set_default_device(device)
    torch.manual_seed(0)  # each draws the same
    backend = {"cpu": "gloo", "cuda": "nccl"}[device]
    dist.init_process_group(backend, f"file://{meeting}", rank=rank, world_size=size)
    mesh = init_device_mesh(device, (size,))
    every = {name: partial(compare, spec) for name, spec in table.load().items()}
    for name, task in (TASKS | every).items():
        if names and name not in names:
            continue
        try:
            print(f"{rank} {name}: {task(mesh)} done\n", end="", flush=True)
        except Exception:  # the others wait for this process in vain, and so it ends
            traceback.print_exc()
            return False
    dist.barrier()
    return True


def main(size: int, meeting: str, device: str, names: list[str]) -> int:
    """Fork the processes, which takes the seconds of these imports once; return failures."""
    members = []
    for rank in range(size):
        if (pid := os.fork()) == 0:
            right = False
            try:
                right = member(rank, size, meeting, device, names)
            except BaseException:
                traceback.print_exc()
            os._exit(not right)  # gloo's threads may abort a process that ends in the usual way
        members.append(pid)
    failed = 0
    while members:
        pid, status = os.wait()
        members.remove(pid)
        if status:
            failed += 1
            for other in members:  # may wait for it in vain
                os.kill(other, signal.SIGTERM)
    return failed


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
