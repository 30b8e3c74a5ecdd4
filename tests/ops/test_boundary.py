"""What no kernel can read or serve is refused by name, before torch looks into it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import fuseline
from fuseline.core.registration import contract

OPS = torch.ops.fuseline
# Torch's own operators crash on the quantized ones, and so does torch 2.13 where Python's collector
# looks at a view of one: a child that collects nothing. Torch 2.13 alone crashes as well where the
# view as another dtype is negated, before any operator of ours is called: that one is not tried.
HEAD = """
import gc, os
from itertools import permutations

gc.disable()
import torch, fuseline
x = torch.randn(4, 8)
s = torch.ones(())
stats = torch.ones(4)
ops = {
    "softmax": [(x, -1)], "_softmax_bwd": [(x, x, -1)], "_rms_norm": [(x, x[0], 1e-6)],
    "_rms_norm_fwd": [(x, x[0], 1e-6)], "add_rms_norm": [(x, x, x[0], 1e-6)],
    "_add_rms_norm_fwd": [(x, x, x[0], 1e-6)],
    "_rms_norm_bwd": [(x, x, x[0], stats, True, True)], "rms_norm_fp8": [(x, x[0], s, 1e-6)],
    "rms_norm_fp8_dynamic": [(x, x[0], 1e-6, None, None)],
    "_add_rms_norm_fp8_dynamic": [(x, x, x[0], 1e-6, 16, None)],
    "_layer_norm_fp8": [(x, x[0], x[0], s, 1e-6)],
    "_layer_norm_fp8_dynamic__triton": [(x, x[0], x[0], 1e-6, None, None)],
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

def refuse(word, op, *args):
    try:
        op(*args)
    except TypeError as error:
        assert word in str(error), (op, error)
    else:
        raise AssertionError(op)
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
# Torch has no dispatch key for meta and quantized: the kernel is called.
BESIDE_META = """
def view(t):
    return torch.quantize_per_tensor(t.float(), 0.1, 0, torch.qint32).view(torch.float32)

for name, calls in served.items():
    op = getattr(torch.ops.fuseline, name).default
    parameters = [a.name for a in op._schema.arguments]
    for args in calls:
        tensors = [at for at, a in enumerate(args) if isinstance(a, torch.Tensor)]
        for meta, at in permutations(tensors, 2):
            given = list(args)
            given[meta] = given[meta].to("meta")
            given[at] = view(args[at])
            refuse(f"{parameters[at]} has layout quantized", op, *given)
            if args[at].dim() > 1:
                given[at] = torch.nested.as_nested_tensor(args[at])
                refuse(f"{parameters[at]} has layout nested", op, *given)
for at, name in enumerate("qkv"):
    given = [rows, rows, rows]
    given[at] = view(rows)
    refuse(f"{name} has layout quantized", fuseline.attention_varlen, *given, starts, starts)
"""
# A fake mode asks for the shapes of results before any key of the dispatcher.
BESIDE_FAKE = """
import logging
from torch._subclasses import FakeTensorMode

logging.disable()
mode = FakeTensorMode(allow_non_fake_inputs=True)
for name, calls in ops.items():
    op = getattr(torch.ops.fuseline, name).default
    parameters = [a.name for a in op._schema.arguments]
    for args in calls:
        tensors = [at for at, a in enumerate(args) if isinstance(a, torch.Tensor)]
        for fake, at in permutations(tensors, 2):
            if args[at].dim() != 2:
                continue
            given = list(args)
            given[fake] = mode.from_tensor(given[fake])
            given[at] = args[at].to_sparse_csr()
            refuse(f"{parameters[at]} has layout torch.sparse_csr", op, *given)
"""
END = """
print("ended", flush=True)
os._exit(0)
"""


@pytest.mark.parametrize(
    "body",
    [LAYOUTS, FREED, BESIDE_META, BESIDE_FAKE],
    ids=["layouts", "freed", "beside meta", "beside fake"],
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
        fuseline.layer_norm_fp8_dynamic,
        lambda t: fuseline.bias_dropout_add(t, torch.randn(8), t, 0.5, True),
    ):
        with pytest.raises(TypeError, match=r"x has layout nested, expected torch\.strided"):
            call(x)


@pytest.mark.skipif(torch.cuda.is_available(), reason="Triton's kernels run here")
def test_a_triton_operator_says_where_it_does_not_run() -> None:
    with pytest.raises(RuntimeError, match="softmax: impl 'triton' cannot run here: Triton"):
        OPS.masked_softmax__triton(torch.randn(3, 8), None, False, 1.0, False)


def test_raw_operators_name_what_implementations_cannot_look_at() -> None:
    """With a gradient what they serve is asked before the kernel, which looks at its arguments."""
    leaf, x = torch.randn((), requires_grad=True), torch.randn(4, 4)
    how = (False, None, -1, -1, 0.0, None, None, False)
    starts = torch.tensor([0, 4], dtype=torch.int32)
    for op, *args in (
        ("matmul_relu__triton", leaf, x),
        ("matmul_add__triton", x, leaf, x[0]),
        ("matmul_add_gelu__triton", leaf, x, x[0], "tanh"),
        ("matmul_matmul__triton", x, leaf, x, None),
        ("mlp__triton", leaf, x, x[0], x, x[0], "gelu"),
        ("attention__flash", leaf, x, x, None, *how),
        ("attention_varlen__triton", leaf, x, x, starts, starts, 4, 4, *how),
        ("layer_norm__aten", leaf, x[0], x[0], 1e-5),
    ):
        own = op.partition("__")[0]
        with pytest.raises(ValueError, match=f"^{own}: (a|b|q|x|w1) (has|is) "):
            getattr(torch.ops.fuseline, op)(*args)


def test_raw_backwards_refuse_what_an_implementation_does_not_serve() -> None:
    """Else they would compute something else, or raise an error of torch's."""
    x, half, stats = torch.randn(4, 8), torch.randn(4, 8).half(), torch.ones(4)
    heads, mask, lse = torch.randn(1, 2, 16, 8), torch.randn(16, 16), torch.randn(1, 2, 16)
    attention = (heads, heads, lse, heads, heads, heads)
    how, windowed = (False, None, -1, -1, 0.0), (False, None, 3, 3, 0.0)
    end = (None, None, False)
    for op, words, *args in (
        ("_layer_norm_bwd__aten", "mean and rstd of torch.float16",
         half, half, half[0], stats, stats, True, True, True),
        ("_matmul_relu_bwd__onednn", "its ReLU makes 0 of NaN",
         x @ x.mT, x, x.mT, x @ x.mT, True, True),
        ("_attention_bwd__flash", "it has no window", *attention, None, *windowed, *end, False),
        ("_attention_bwd__flash", "it gives a mask no gradient",
         *attention, mask, *how, *end, True),
    ):  # fmt: skip
        with pytest.raises(
            RuntimeError, match=f"^{op[1:-2].partition('_bwd')[0]}: .* here: {words}"
        ):
            getattr(torch.ops.fuseline, op)(*args)


def test_a_backward_is_refused_by_the_arguments_of_the_forward_that_it_has() -> None:
    asked: list[Any] = []

    def unsupported(*args: Any) -> str | None:
        asked.append(args)
        return "it is odd" if args[1] % 2 else None

    kernels = contract.Kernels(run=abs, bwd=lambda dy, x, offset=0.0: dy)
    provider = contract.Provider("part", kernels, lambda device: None, unsupported)
    made = SimpleNamespace(
        name="op",
        args="Tensor x, float eps, float offset=0.0",
        bwd_args="Tensor dy, Tensor x, float offset=0.0",
    )
    call: Any = provider.backward(made)  # type: ignore[arg-type]
    assert call(7, 2) == call(7, 2, 0.5) == 7  # torch leaves defaults out
    with pytest.raises(RuntimeError, match=r"^op: impl 'part' cannot run here: it is odd"):
        call(7, 3)
    assert asked == [("bwd", 2, None), ("bwd", 2, None, 0.5), ("bwd", 3, None)]


def test_auto_names_an_argument_beside_a_default() -> None:
    with pytest.raises(ValueError, match="rms_norm: x is a scalar"):
        torch.ops.fuseline.rms_norm__auto(torch.randn(()), None, 1e-6)
