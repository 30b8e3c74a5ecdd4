"""What test_patching_distributed runs in each process over gloo: every way to wrap a model."""

from __future__ import annotations

import copy
import os
import sys
import traceback
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_module
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

import fuseline

N = 16


class Gated(Module):
    """A feed-forward network with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = (torch.nn.Linear(N, 2 * N) for _ in range(2))
        self.down, self.act = torch.nn.Linear(2 * N, N), torch.nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.down(self.act(self.gate(x)) * self.up(x))
        return y


class Block(Module):
    """Two norms and a gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = torch.nn.RMSNorm(N), torch.nn.LayerNorm(N)
        self.mlp = Gated()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(x + self.mlp(self.norm(x)))
        return y


def sharded(net: Any, **options: Any) -> Module:
    for part in (net.norm, net.mlp):
        fully_shard(part, **options)
    fully_shard(net, **options)
    return net


def tensor_parallel(net: Any) -> Module:
    """Split the linear layers; the norm's weight and input are replicated DTensors."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    distribute_module(
        net.norm,
        mesh,
        input_fn=lambda _, args, mesh: DTensor.from_local(args[0], mesh, [Replicate()]),
        output_fn=lambda _, y, mesh: y.to_local(),
    )
    plan = {"mlp.gate": ColwiseParallel(), "mlp.up": ColwiseParallel()}
    plan |= {"mlp.down": RowwiseParallel()}
    return parallelize_module(net, mesh, plan)


def whole(t: Tensor) -> Tensor:
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def patch(net: Module) -> fuseline.patching.Report:
    return fuseline.patch(net, impl="cpu")


def losses(net: Module, steps: int = 3) -> list[float]:
    """Return losses of a few steps; all processes see the same batch."""
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(3)
    found = []
    for _ in range(steps):
        x, goal = (torch.randn(2, 4 * N, N, generator=generator) for _ in range(2))
        opt.zero_grad()
        loss = (whole(net(x)).float() - goal).square().mean()
        loss.backward()
        opt.step()
        found.append(loss.item())
    return found


def served(net: Module) -> int:
    return sum(m.served for m in fuseline.patch_status(net).modules)


WRAPS = {
    "ddp": DistributedDataParallel,
    "fsdp": sharded,
    "fsdp_bf16": lambda net: sharded(net, mp_policy=MixedPrecisionPolicy(torch.bfloat16)),
    "tp": tensor_parallel,
}


def run(how: str, first: str) -> None:
    torch.manual_seed(0)
    own = Block()
    mine = copy.deepcopy(own)
    wanted = losses(WRAPS[how](own))
    if first == "patch":
        assert len(patch(mine).replaced) == 3
    mine = WRAPS[how](mine)
    if first == "wrap":
        report = patch(mine)
        assert len(report.replaced) + len(report.kept) == 3, str(report)
        if how == "tp":
            assert [k[:1] for k in report.kept] == [("norm",)], str(report)
        else:
            assert not report.kept, str(report)
    got = losses(mine)
    tolerance = 5e-3 if how == "fsdp_bf16" else 1e-5
    torch.testing.assert_close(got, wanted, rtol=tolerance, atol=tolerance)
    # Of tensor parallelism the norm whose weight is a DTensor serves nothing.
    assert served(mine) == (6 if how == "tp" else 9), str(fuseline.patch_status(mine))
    kinds = [type(m) for m in mine.modules()]
    assert fuseline.unpatch(mine) == (2 if (how, first) == ("tp", "wrap") else 3)
    if how.startswith("fsdp") and first == "patch":
        assert [type(m) for m in mine.modules()][:2] == kinds[:2], "FSDP's classes stay"
    losses(mine)
    assert served(mine) == 0


def member(rank: int, size: int, meeting: str) -> None:
    """Run all ways as one of a group of processes that meet in a file."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=size)
    for how, first in product(WRAPS, ("patch", "wrap")):
        run(how, first)
        print(f"done {how} {first}\n", end="", flush=True)  # one write: no other between
    dist.barrier()


def group(size: int, meeting: str) -> int:
    """Fork a group of processes, which takes the seconds of these imports once; return failures."""
    members = []
    for rank in range(size):
        if (pid := os.fork()) == 0:
            code = 1
            try:
                member(rank, size, meeting)
                code = 0
            except BaseException:
                traceback.print_exc()
            os._exit(code)  # gloo's threads may abort a process that ends in the usual way
        members.append(pid)
    return sum(os.waitpid(pid, 0)[1] != 0 for pid in members)


if __name__ == "__main__":
    failed = [group(int(n), f"{sys.argv[1]}/{n}") for n in sys.argv[2:]]
    sys.exit(any(failed))
