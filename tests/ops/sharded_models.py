"""What test_sharding runs in each process: models in parallel, beside one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

import fuseline

STEPS = {"cpu": 30, "cuda": 200}
BATCHES = 4
# F.linear of what was gathered from uneven parts fails in torch 2.11.
LENGTH = 7 if torch.__version__ >= (2, 13) else 8
TINY = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0,
}  # fmt: skip


class Block(Module):
    """A norm and a gated feed-forward network of our operators around linear layers."""

    def __init__(self, n: int = 16) -> None:
        super().__init__()
        self.norm = fuseline.nn.RMSNorm(n)
        self.gate, self.up = (torch.nn.Linear(n, 2 * n, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(2 * n, n, bias=False)
        self.last = fuseline.nn.RMSNorm(n)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        y: Tensor = self.last(x + self.down(fuseline.swiglu(self.gate(h), self.up(h))))
        return y


def sequence_parallel(block: Module, mesh: DeviceMesh) -> Module:
    """Cut tokens in the norms, and features between the linear layers."""
    plan = {
        "": PrepareModuleInput(input_layouts=Replicate(), desired_input_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "gate": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        "up": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "last": SequenceParallel(),
    }
    return parallelize_module(block, mesh, plan)


def llama() -> Any:
    transformers = __import__("transformers")
    config = transformers.AutoConfig.for_model("llama", **TINY)
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")


def patched(model: Any) -> Any:
    on_a_cpu = torch.get_default_device().type == "cpu"
    report = fuseline.patch(model, impl="cpu" if on_a_cpu else "auto")
    heads = 0 if on_a_cpu else 1  # of impl="cpu" there is no linear_cross_entropy
    # Norms, gates, attention, the loss and what makes its logits.
    assert len(report.replaced) == 5 + 2 + 2 + 1 + heads, str(report)
    return model


def sharded(model: Any, mesh: DeviceMesh) -> Module:
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(model: Any, mesh: DeviceMesh) -> Module:
    cut = {
        f"{part}.{name}": style()
        for part, columns, rows in (
            ("self_attn", ("q_proj", "k_proj", "v_proj"), ("o_proj",)),
            ("mlp", ("gate_proj", "up_proj"), ("down_proj",)),
        )
        for names, style in ((columns, ColwiseParallel), (rows, RowwiseParallel))
        for name in names
    }
    for layer in model.model.layers:
        parallelize_module(layer, mesh, cut)
    return model


def whole(t: Any) -> Any:
    """Return all of a tensor; of eight bits, which gloo does not send, in float32."""
    if not isinstance(t, DTensor):
        return t
    return (t.float() if t.dtype == torch.float8_e4m3fn else t).full_tensor()


def losses(
    model: Module, loss_of: Callable[[Module, torch.Generator], Tensor], steps: int
) -> list[float]:
    """Return the losses of some steps; all processes see the same few batches, in turn."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.03, foreach=False)
    generator = torch.Generator(torch.get_default_device())
    found = []
    for step in range(steps):
        generator.manual_seed(3 + step % BATCHES)
        optimiser.zero_grad()
        loss = whole(loss_of(model, generator))
        loss.backward()
        optimiser.step()
        found.append(loss.item())
    return found


def of_block(model: Module, generator: torch.Generator) -> Tensor:
    x, goal = (torch.randn(2, LENGTH, 16, generator=generator) for _ in range(2))
    return (whole(model(x)) - goal).square().mean()


def of_tokens(model: Any, generator: torch.Generator) -> Tensor:
    tokens = torch.randint(1, TINY["vocab_size"], (2, 9), generator=generator)
    loss: Tensor = model(tokens, labels=tokens).loss
    return loss


def parity(make: Any, wrap: Any, loss_of: Any) -> Callable[[DeviceMesh], int]:
    """Return a task: losses of a model that is wrapped are those of the model alone, to 1e-3 beside
    what a change of its weights by a rounding makes of them, which training may amplify.
    """

    def run(mesh: DeviceMesh) -> int:
        steps = STEPS[mesh.device_type]
        torch.manual_seed(0)
        alone = make()
        rounded = copy.deepcopy(alone)
        with torch.no_grad():
            for p in rounded.parameters():
                p.mul_(1 + torch.finfo(p.dtype).eps * torch.randn_like(p))
        many = wrap(copy.deepcopy(alone), mesh)
        wanted, by_rounding, found = (
            torch.tensor(losses(model, loss_of, steps)) for model in (alone, rounded, many)
        )
        assert wanted[-BATCHES:].sum() < wanted[:BATCHES].sum()
        off = (found - wanted).abs() - (by_rounding - wanted).abs()
        assert bool((off <= 1e-3 * wanted).all()), (found, wanted, by_rounding)
        return steps

    return run


def stays_local(mesh: DeviceMesh) -> int:
    """Rows cut among processes are computed where they are, and a weight's gradient is a sum."""
    x, z, w = torch.randn(6, 5, 8), torch.randn(6, 5, 8), torch.randn(8)
    calls: list[Callable[..., Any]] = [
        lambda x, z, w: fuseline.rms_norm(x, w),
        lambda x, z, w: fuseline.layer_norm(x, w, w),
        lambda x, z, w: fuseline.add_rms_norm(x, z, w)[0],
        lambda x, z, w: fuseline.bias_gelu(x, w),
        lambda x, z, w: fuseline.swiglu(x, z) * w,
        lambda x, z, w: fuseline.softmax(x) * w,
    ]
    for call in calls:
        for dim in (0, 1):
            cut = [distribute_tensor(t, mesh, [Shard(dim)]) for t in (x, z)]
            given = [*cut, distribute_tensor(w, mesh, [Replicate()])]
            for t in given:
                t.requires_grad_()
            dy = distribute_tensor(torch.ones_like(x), mesh, [Shard(dim)])
            with CommDebugMode() as seen:
                y = call(*given)
                grads = torch.autograd.grad(y, given, dy, allow_unused=True)
            assert seen.get_total_counts() == 0, seen.get_comm_counts()
            assert y.placements == grads[0].placements == (Shard(dim),)
            assert grads[2].placements[0].is_partial()
    return len(calls)


def on_two_dimensions(mesh: DeviceMesh) -> int:
    """A mesh for data and for sequence parallelism: both cut rows, and both add to dweight."""
    square = init_device_mesh(mesh.device_type, (1, mesh.size()))
    tensors = torch.randn(6, 5, 8), torch.randn(8), torch.randn(8)
    found = []
    for cut in (False, True):
        given = [t.clone() for t in tensors]
        if cut:
            places = [(Shard(0), Shard(1)), *[(Replicate(), Replicate())] * 2]
            given = [distribute_tensor(t, square, p) for t, p in zip(given, places, strict=True)]
        for t in given:
            t.requires_grad_()
        y = fuseline.layer_norm(*given)
        found.append([whole(t) for t in (y, *torch.autograd.grad(y.square().sum(), given))])
    torch.testing.assert_close(*found)
    return 1


def asks_again(mesh: DeviceMesh) -> int:
    """What is not asked for first, and then is, has its own shape."""
    x, w = (distribute_tensor(torch.randn(s), mesh, [Replicate()]) for s in ((4, 8), (8,)))
    for needs in ((False, True), (True, False), (True, True)):
        given = [t.detach().requires_grad_(need) for t, need in zip((x, w), needs, strict=True)]
        fuseline.rms_norm(given[0], given[1]).sum().backward()
        assert [t.grad is not None and t.grad.shape == t.shape for t in given] == list(needs)
    return 3


def compiled(mesh: DeviceMesh) -> int:
    x = distribute_tensor(torch.randn(4, 8), mesh, [Shard(0)]).requires_grad_()
    w = distribute_tensor(torch.randn(8), mesh, [Replicate()]).requires_grad_()
    run = torch.compile(fuseline.rms_norm, fullgraph=True, backend="aot_eager")

    def found(call: Callable[..., Tensor]) -> list[Tensor]:
        y = call(x, w)
        return [whole(t) for t in (y, *torch.autograd.grad(y.square().sum(), (x, w)))]

    torch.testing.assert_close(found(run), found(fuseline.rms_norm))
    return 1


def in_inference_mode(mesh: DeviceMesh) -> int:
    with torch.inference_mode():
        x = distribute_tensor(torch.randn(4, 8), mesh, [Shard(0)])
        y = fuseline.rms_norm(x)
        assert y.placements == (Shard(0),)
        torch.testing.assert_close(whole(y), fuseline.rms_norm(whole(x)))
    return 1


def dropout_is_that_of_the_whole(mesh: DeviceMesh) -> int:
    x, bias = torch.randn(6, 8), torch.randn(8)
    options: dict[str, Any] = {"p": 0.5, "training": True, "seed": 7}
    wanted = fuseline.bias_dropout_add(x, bias, x, **options)
    cut = distribute_tensor(x, mesh, [Shard(0)])
    given = cut, distribute_tensor(bias, mesh, [Replicate()]), cut
    torch.testing.assert_close(whole(fuseline.bias_dropout_add(*given, **options)), wanted)
    return 1


TASKS = {
    # First, as no other call has registered anything.
    "in inference mode": in_inference_mode,
    "stays local": stays_local,
    "two dimensions": on_two_dimensions,
    "asks again": asks_again,
    "compiled": compiled,
    "dropout": dropout_is_that_of_the_whole,
    "sequence parallel": parity(Block, sequence_parallel, of_block),
    "llama, ddp": parity(llama, lambda m, mesh: DistributedDataParallel(patched(m)), of_tokens),
    "llama, fsdp": parity(llama, lambda m, mesh: sharded(patched(m), mesh), of_tokens),
    "llama, tp": parity(llama, lambda m, mesh: tensor_parallel(patched(m), mesh), of_tokens),
}
