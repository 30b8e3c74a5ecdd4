"""The computed walk: what the tables say of calls whose way through torch is known."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

import fuseline  # noqa: F401  registers the operators
from fuselab.trace.walk import Turn, descending, keys_of, table, walk

X = torch.randn(4, 64)


def steps(op: str, *tensors: torch.Tensor) -> list[tuple[str, Turn]]:
    return [(step.key, step.turn) for step in walk(op, keys_of(tensors or (X,)))]


def test_our_operator_goes_through_autograd_to_its_cpu_kernel() -> None:
    assert steps("fuseline::rms_norm", X.clone().requires_grad_()) == [
        ("AutogradCPU", Turn.CALLS_AGAIN),
        ("ADInplaceOrView", Turn.PASSES),
        ("BackendSelect", Turn.PASSES),
        ("CPU", Turn.ENDS),
    ]


def test_the_place_of_a_kernel_in_cpp_is_its_own_file() -> None:
    *_, last = walk("fuseline::rms_norm", keys_of([X]))
    file, line = last.place.rsplit(":", 1)
    assert file.endswith("ops/rms_norm/impl_cpu.cpp")
    assert int(line) > 0


def test_a_composite_ends_the_walk_where_it_decomposes() -> None:
    assert steps("aten::rms_norm")[-1] == ("AutogradCPU", Turn.DECOMPOSES)


def test_autocast_has_a_turn_only_where_it_is_on() -> None:
    assert steps("aten::mm")[0][0] == "AutogradCPU"
    with torch.autocast("cpu", torch.bfloat16):
        assert steps("aten::mm")[0] == ("AutocastCPU", Turn.CALLS_AGAIN)
        assert steps("fuseline::rms_norm")[0] == ("AutocastCPU", Turn.PASSES)


def test_inference_mode_has_no_autograd() -> None:
    with torch.inference_mode():
        assert not any(key.startswith("Autograd") for key, _ in steps("aten::mm"))


def test_under_vmap_functorch_takes_over() -> None:
    seen = []

    def look(x: torch.Tensor) -> torch.Tensor:
        seen.extend(steps("aten::mul.Tensor", x))
        return x * 2

    torch.vmap(look)(X)
    assert seen == [("FuncTorchDynamicLayerFrontMode", Turn.REENTERS)]


def test_a_meta_tensor_ends_at_meta() -> None:
    assert steps("fuseline::rms_norm", X.to("meta"))[-1] == ("Meta", Turn.ENDS)


def test_where_nothing_is_registered_the_walk_says_so() -> None:
    assert steps("aten::_softmax", X.to_sparse())[-1] == ("SparseCPU", Turn.MISSING)


@pytest.mark.parametrize("op", ["aten::mm", "aten::rms_norm", "fuseline::softmax", "aten::relu_"])
def test_every_step_is_a_key_of_the_call_in_the_order_of_the_keys(op: str) -> None:
    keys = keys_of([X])
    order = list(descending(keys))
    for first, second in pairwise(key for key, _ in steps(op)):
        assert order.index(first) < order.index(second)


@pytest.mark.parametrize("op", ["aten::mm", "fuseline::rms_norm", "aten::_softmax"])
def test_the_table_agrees_with_torch_on_what_falls_through(op: str) -> None:
    for key in ("CPU", "Meta", "AutogradCPU", "AutocastCPU", "Functionalize", "FuncTorchBatched"):
        if torch._C._dispatch_has_kernel_for_dispatch_key(op, key):
            told = torch._C._dispatch_kernel_for_dispatch_key_is_fallthrough(op, key)
            assert table(op)[key].falls_through == told, key
