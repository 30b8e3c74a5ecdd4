"""Tensors that no kernel can read are refused by name, and torch does not look into them first."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import fuseline

OPS = torch.ops.fuseline
# Torch's own operators crash on the quantized ones, and so does torch 2.13 where Python's collector
# looks at a view of one: a child that collects nothing. Torch 2.13 alone crashes as well where the
# view as another dtype is negated, before any operator of ours is called: that one is not tried.
HEAD = """
import gc, os
gc.disable()
import torch, fuseline
x = torch.randn(4, 8)
s = torch.ones(())
stats = torch.ones(4)
ops = {
    "softmax": [(x, -1)], "_softmax_bwd": [(x, x, -1)], "_rms_norm": [(x, x[0], 1e-6)],
    "_rms_norm_fwd": [(x, x[0], 1e-6)], "add_rms_norm": [(x, x, x[0], 1e-6)],
    "_rms_norm_bwd": [(x, x, x[0], stats, True, True)], "rms_norm_fp8": [(x, x[0], s, 1e-6)],
    "_layer_norm": [(x, x[0], x[0], 1e-6)], "_layer_norm__triton": [(x, x[0], x[0], 1e-6)],
    "_bias_dropout_add": [(x, x[0], x, 0.5, True, 7)],
    "_bias_gelu_bwd": [(x, x, x[0], "tanh", True, True)],
    "masked_softmax": [(x, x, False, 1.0, False)], "pointwise_chain__triton": [(x,)],
    "_double_softmax_bwd": [(x, x, torch.ones(4, 3), 1)],
    "_norm_chain_bwd": [(x, x, stats.double())],
}
heads = torch.randn(1, 2, 4, 8)
rows, starts = torch.randn(4, 2, 8), torch.tensor([0, 3, 4], dtype=torch.int32)
image, kernel, places = torch.randn(2, 4, 6, 6), torch.randn(4, 4, 3, 3), ([1, 1], [0, 0], [1, 1])
how = (False, None, -1, -1, 0.0, None, None, False)
# Those over several implementations, which Python picks.
served = {
    "_matmul_relu": [(x, x.mT)], "matmul_add_gelu": [(x, x.mT, stats, "tanh")],
    "_matmul_add_gelu_bwd__aten": [(x @ x.mT, x, x.mT, x @ x.mT, "tanh", True, True, True)],
    "_matmul_matmul": [(x, x.mT, x, None)], "mlp": [(x, x.mT, stats, x, x[0], "gelu")],
    "_mlp_fwd__onednn": [(x, x.mT, stats, x, x[0], "gelu")],
    "_attention": [(heads, heads, heads, heads[..., :4], *how)],
    "_attention_fwd__math": [(heads, heads, heads, None, *how)],
    "_attention_varlen": [(rows, rows, rows, starts, starts, 3, 3, *how)],
    "_attention_varlen__flash": [(rows, rows, rows, starts, starts, 3, 3, *how)],
    "_conv_relu": [(image, kernel, stats, *places, 1)],
    "conv_add_relu": [(image, kernel, stats, torch.randn(2, 4, 4, 4), *places, 1)],
    "_conv_bn_fwd__aten": [(image, kernel, None, stats, stats, 1e-5, True, *places, 1)],
}
ops |= served
"""
LAYOUTS = """
q = torch.quantize_per_tensor(x, 0.1, 0, torch.qint32)
unreadable = {
    "quantized": [q, q.view(torch.float32), q.view(torch.uint8), torch._neg_view(q),
                  torch.quantize_per_channel(x, torch.ones(4), torch.zeros(4), 0, torch.qint8)],
    "nested": [torch.nested.nested_tensor([x, x[:2]]),
               torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged)],
    "torch.sparse_coo": [x.to_sparse()],
    "torch.sparse_csr": [x.to_sparse_csr()],
    "torch._mkldnn": [x.to_mkldnn()],
}
for name, calls in ops.items():
    op = getattr(torch.ops.fuseline, name).default
    parameters = [a.name for a in op._schema.arguments]
    for args in calls:
        for at, a in enumerate(args):
            if not isinstance(a, torch.Tensor):
                continue
            for layout, tensors in unreadable.items():
                for t in tensors:
                    try:
                        op(*args[:at], t, *args[at + 1 :])
                    except TypeError as error:
                        word = f"{parameters[at]} has layout {layout}, expected torch.strided"
                        assert word in str(error), (name, at, layout, error)
                    else:
                        raise AssertionError((name, at, layout))
"""
FREED = """
for name, calls in ops.items():
    op = getattr(torch.ops.fuseline, name).default
    parameters = [a.name for a in op._schema.arguments]
    for args in calls if "triton" not in name else ():
        for at, a in enumerate(args):
            if not isinstance(a, torch.Tensor):
                continue
            t = a.clone()
            t.untyped_storage().resize_(0)
            try:
                op(*args[:at], t, *args[at + 1 :])
            except RuntimeError as error:
                word = f"{parameters[at]} has elements, but its memory was freed"
                assert word in str(error), (name, at, error)
            else:
                raise AssertionError((name, at))
"""
# Torch has no dispatch key for both: the kernel is called.
BESIDE_META = """
from itertools import permutations

def view(t):
    return torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint32).view(torch.float32)

def refuse(word, op, *args):
    try:
        op(*args)
    except TypeError as error:
        assert word in str(error), (op, error)
    else:
        raise AssertionError(op)

for name, calls in served.items():
    op = getattr(torch.ops.fuseline, name).default
    parameters = [a.name for a in op._schema.arguments]
    for args in calls:
        tensors = [at for at, a in enumerate(args) if isinstance(a, torch.Tensor)]
        for meta, quantized in permutations(tensors, 2):
            given = list(args)
            given[meta] = given[meta].to("meta")
            given[quantized] = view(given[quantized])
            refuse(f"{parameters[quantized]} has layout quantized", op, *given)
for at, name in enumerate("qkv"):
    given = [rows, rows, rows]
    given[at] = view(rows)
    refuse(f"{name} has layout quantized", fuseline.attention_varlen, *given, starts, starts)
"""
END = """
print("ended", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    "body", [LAYOUTS, FREED, BESIDE_META], ids=["layouts", "freed", "beside meta"]
)
def test_unreadable_tensors_are_refused_by_name(body: str) -> None:
    """Freed: as FSDP frees parameters."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-X", "faulthandler", "-c", HEAD + body + END],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr


def test_tensors_with_the_negative_bit_are_read() -> None:
    x = torch.randn(3, 8)
    negative = torch._neg_view(x)
    assert torch.equal(OPS.softmax(negative, -1), OPS.softmax(-x, -1))
    assert torch.equal(fuseline.softmax(negative), fuseline.softmax(-x))
    leaf = x.clone().requires_grad_()
    fuseline.rms_norm(torch._neg_view(leaf)).pow(3).sum().backward()
    other = x.clone().requires_grad_()
    fuseline.rms_norm(-other).pow(3).sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad)


def test_the_public_functions_name_a_nested_tensor() -> None:
    x = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(2, 8)], layout=torch.jagged)
    for call in (
        fuseline.rms_norm,
        fuseline.layer_norm,
        fuseline.softmax,
        fuseline.norm_chain,
        lambda t: fuseline.add_rms_norm(t, t),
        lambda t: fuseline.bias_gelu(t, torch.randn(8)),
        lambda t: fuseline.rms_norm_fp8(t, None, torch.ones(1)),
        lambda t: fuseline.bias_dropout_add(t, torch.randn(8), t, 0.5, True),
    ):
        with pytest.raises(TypeError, match=r"x has layout nested, expected torch\.strided"):
            call(x)


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's kernels run here")
def test_a_triton_operator_says_where_it_does_not_run() -> None:
    with pytest.raises(RuntimeError, match="softmax: impl 'triton' cannot run here: Triton"):
        OPS.masked_softmax__triton(torch.randn(3, 8), None, False, 1.0, False)
