"""compile_options: masks that no kernel of a GPU can read are made dense before torch chooses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule
from torch.utils.checkpoint import checkpoint

from fuseline.inlining.strides import make_masks_dense

N = 24


def everyone(x: Tensor) -> Tensor:
    """Return a mask as transformers' models without padding make it."""
    return (torch.arange(N, device=x.device) >= 0)[None, None, :, None].expand(2, 1, N, N)


MASKS: dict[str, Callable[[Tensor], Tensor]] = {
    "everyone": everyone,
    "added": lambda x: torch.zeros(1, device=x.device).expand(N, N),
    "transposed": lambda x: torch.ones(N, N, device=x.device).tril().bool().mT,
}
DENSE: dict[str, Callable[[Tensor], Tensor]] = {
    "triangle": lambda x: torch.ones(N, N, device=x.device).tril().bool(),
    "of each key": lambda x: (torch.arange(N, device=x.device) < 9).expand(2, 1, N, N),
}


def by_name(q: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, q, q, attn_mask=mask)


def by_place(q: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, q, q, mask)


def in_a_checkpoint(q: Tensor, mask: Tensor) -> Tensor:
    y: Tensor = checkpoint(by_name, q, mask, use_reentrant=False)
    return y


def strides(
    call: Callable[[Tensor, Tensor], Tensor], mask: Callable[[Tensor], Tensor], device: str
) -> list[int]:
    """Return the last strides of the masks of attention, as torch gets them, after the pass."""
    torch._dynamo.reset()
    graphs: list[GraphModule] = []

    def backend(module: GraphModule, _: Any) -> Any:
        graphs.append(module)
        return module.forward

    q = torch.randn(2, 3, N, 16, device=device)
    torch.compile(lambda q: call(q, mask(q)), backend=backend, fullgraph=True)(q)
    module, found = graphs[0], []
    make_masks_dense(module.graph)
    module.recompile()
    own = F.scaled_dot_product_attention

    def noting(q: Tensor, k: Tensor, v: Tensor, attn_mask: Any = None) -> Tensor:
        found.append(attn_mask.stride(-1))
        return own(q, k, v, attn_mask)

    for part in (m for m in module.modules() if isinstance(m, GraphModule)):
        for node in part.graph.find_nodes(op="call_function", target=own):
            node.target = noting
        part.recompile()
    module(q)
    return found


@pytest.mark.parametrize("call", [by_name, by_place, in_a_checkpoint])
@pytest.mark.parametrize("name", MASKS)
def test_a_mask_that_no_kernel_reads_is_made_dense(name: str, call: Any) -> None:
    assert strides(call, MASKS[name], "meta") == [1]


@pytest.mark.parametrize("name", DENSE)
def test_a_mask_that_kernels_read_stays(name: str) -> None:
    assert strides(by_name, DENSE[name], "meta") == [1]


def test_a_cpus_mask_stays() -> None:
    assert strides(by_name, everyone, "cpu") == [0]
