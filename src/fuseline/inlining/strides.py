"""Attention of torch's in a graph before autograd whose mask no kernel of a GPU can read.

torch chooses the kernel there, and has one for masks alone whose last dimension is contiguous. A
mask that each key is seen by, as traced code of transformers' BERT and ViT makes it, is one number
expanded: attention goes by products in fp32 (H200, bf16: 18.5 ms of BERT's kernels for 10.5).
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

MASK = 3  # among the arguments


def make_masks_dense(graph: Graph) -> None:
    """Give attention a contiguous copy of masks that are expanded, or lie in another order."""
    owner = graph.owning_module
    parts = [] if owner is None else [m for m in owner.modules() if isinstance(m, GraphModule)]
    for part in parts:  # what a checkpoint runs is a module of its own
        calls = part.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)
        for call in calls:
            _make_dense(part.graph, call)
        part.recompile()


def _make_dense(graph: Graph, call: Node) -> None:
    mask: Any = call.args[MASK] if len(call.args) > MASK else call.kwargs.get("attn_mask")
    value = mask.meta.get("example_value") if isinstance(mask, Node) else None
    if not isinstance(value, Tensor) or value.is_cpu or value.is_nested or not value.dim():
        return
    step = value.stride(-1)
    if type(step) is not int or step == 1:
        return
    with graph.inserting_before(call):
        dense = graph.call_method("contiguous", (mask,))
    dense.meta = {"example_value": value.contiguous()}
    call.replace_input_with(mask, dense)
