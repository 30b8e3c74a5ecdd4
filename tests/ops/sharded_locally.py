"""What test_sharding runs without processes: several ranks in one, by torch's LocalTensorMode."""

from __future__ import annotations

import sys
import traceback
from typing import Any

import sharded_operators as by_processes
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed._local_tensor import LocalTensor, LocalTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

from fuseline import table
from fuseline.core.specs.spec import Inputs, OpSpec

FEW = 1  # inputs of an operator: the last, as the first have rows of one element


def compare(spec: OpSpec, ranks: int) -> int:
    """Compare an operator on ranks with itself on whole tensors; return how often.

    Inputs are drawn outside of the mode, where each rank would draw its own.
    """
    count = 0
    for inputs in by_processes.cases(spec)[-FEW:]:
        wanted = by_processes.results(spec, _copied(inputs))
        for placements in by_processes.ways(spec, inputs):
            with LocalTensorMode(ranks):
                mesh = init_device_mesh("cpu", (ranks,))
                given = {
                    k: distribute_tensor(t.contiguous(), mesh, [placements[k]])
                    if isinstance(t, Tensor)
                    else t
                    for k, t in _copied(inputs).items()
                }
                found = [_of_ranks(t, ranks) for t in by_processes.results(spec, given)]
            for rank in range(ranks):
                mine = [t[rank] for t in found]
                torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)
            count += 1
    return count


def _copied(inputs: Inputs) -> dict[str, Any]:
    return {k: t.detach().clone() if isinstance(t, Tensor) else t for k, t in inputs.items()}


def _of_ranks(t: Tensor, ranks: int) -> list[Tensor]:
    return [*t._local_tensors.values()] if isinstance(t, LocalTensor) else [t] * ranks


def main(ranks: int, names: list[str]) -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("fake", rank=0, world_size=ranks, store=FakeStore())
    failed = 0
    for name in names:
        try:
            print(f"{name}: {compare(table.load()[name], ranks)} done", flush=True)
        except Exception:
            failed += 1
            print(f"{name}: failed", flush=True)
            traceback.print_exc()
    return failed


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
