"""Time what is installed for products, convolutions and attention: `tools/providers.py attention`.

Median of triton.testing.do_bench with L2 flushed, in us; a provider that is missing or refuses has
its error's first line instead. Backward: the gradients of all inputs by a graph that is kept.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from triton.testing import do_bench

Calls = dict[str, Callable[[], Any]]


def optional(module: str) -> Any:
    """Return a module, or None, and say so, where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        print(f"  {module}: {error}")
        return None


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = False) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype).requires_grad_(grad)


def time_of(call: Callable[[], Any]) -> str:
    """Return the median of a call in us, or why there is none."""
    try:
        return f"{1e3 * do_bench(call, warmup=10, rep=40, return_mode='median'):.1f}"
    except Exception as error:  # any provider may fail in its own way
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0][:60]}"


def show(title: str, calls: Calls, flops: float) -> None:
    """Print a line for each provider: time and, of known FLOPs, TFLOP/s."""
    print(f"## {title}")
    for name, call in calls.items():
        time = time_of(call)
        rate = f"{flops / float(time) * 1e-6:8.0f} TFLOP/s" if time[0].isdigit() else ""
        print(f"  {name:24s} {time:>10s} {rate}", flush=True)


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, dynamic=False)


def products() -> None:
    for m, n, k in (
        (1024, 1024, 1024), (2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192),
        (8192, 1024, 1024), (8192, 2048, 2048), (8192, 4096, 1024),
    ):  # fmt: skip
        for dtype in (torch.bfloat16, torch.float16):
            a, b, bias = (random(*s, dtype=dtype) for s in ((m, k), (k, n), (n,)))
            b_t = b.t().contiguous().t()
            gelu = compiled(lambda a, b, bias: F.gelu(a @ b + bias, approximate="tanh"))
            calls: Calls = {
                "mm": lambda a=a, b=b: a @ b,
                "mm, b transposed": lambda a=a, b=b_t: a @ b,
                "addmm": lambda a=a, b=b, c=bias: torch.addmm(c, a, b),
                "_addmm_activation relu": lambda a=a, b=b, c=bias: torch._addmm_activation(c, a, b),
                "_addmm_activation gelu": lambda a=a, b=b, c=bias: torch._addmm_activation(
                    c, a, b, use_gelu=True
                ),
                "eager gelu": lambda a=a, b=b, c=bias: F.gelu(a @ b + c, approximate="tanh"),
                "compile gelu": lambda f=gelu, a=a, b=b, c=bias: f(a, b, c),
            }
            calls |= products_of_ours(a, b, bias) | quack_products(a, b_t, bias)
            show(f"product {m} x {n} x {k} {dtype}", calls, 2.0 * m * n * k)


def products_of_ours(a: Tensor, b: Tensor, bias: Tensor) -> Calls:
    fuseline = optional("fuseline")
    if fuseline is None:
        return {}
    return {
        "fuseline matmul_add": lambda: fuseline.matmul_add(a, b, bias),
        "fuseline matmul_relu": lambda: fuseline.matmul_relu(a, b),
        "fuseline matmul_add_relu": lambda: fuseline.matmul_add_relu(a, b, bias),
        "fuseline matmul_add_gelu": lambda: fuseline.matmul_add_gelu(a, b, bias),
    }


def quack_products(a: Tensor, b: Tensor, bias: Tensor) -> Calls:
    quack = optional("quack.gemm_interface")
    if quack is None:
        return {}
    return {
        "quack gemm": lambda: quack.gemm(a, b, tuned=False),
        "quack gemm_act gelu": lambda: quack.gemm_act(
            a, b, bias=bias, activation="gelu_tanh_approx", store_preact=False, tuned=False
        ),
    }


def convolutions() -> None:
    layers = (
        (32, 256, 56, 256, 3, 1), (32, 64, 56, 64, 1, 1), (32, 64, 56, 64, 3, 1),
        (32, 128, 28, 128, 3, 1), (32, 256, 14, 256, 3, 1), (32, 512, 7, 512, 3, 1),
    )  # fmt: skip
    for batch, ins, size, outs, kernel, stride in layers:
        x, w = random(batch, ins, size, size), random(outs, ins, kernel, kernel)
        x, w = (t.to(memory_format=torch.channels_last) for t in (x, w))
        bias, pad = random(outs), kernel // 2
        z = F.conv2d(x, w, None, stride, pad)
        fused = compiled(lambda x, w, b, p=pad: torch.relu(F.conv2d(x, w, b, 1, p)))
        args: Any = ([stride, stride], [pad, pad], [1, 1], 1)
        calls: Calls = {
            "conv": lambda x=x, w=w, p=pad: F.conv2d(x, w, None, 1, p),
            "conv + bias": lambda x=x, w=w, b=bias, p=pad: F.conv2d(x, w, b, 1, p),
            "cudnn_convolution_relu": lambda x=x, w=w, b=bias, r=args: torch.cudnn_convolution_relu(
                x, w, b, *r
            ),
            "cudnn_convolution_add_relu": lambda x=x, w=w, b=bias, z=z, r=args: (
                torch.cudnn_convolution_add_relu(x, w, z, 1.0, b, *r)
            ),
            "eager relu": lambda x=x, w=w, b=bias, p=pad: torch.relu(F.conv2d(x, w, b, 1, p)),
            "compile relu": lambda f=fused, x=x, w=w, b=bias: f(x, w, b),
        }
        calls |= convolutions_of_ours(x, w, bias, z, stride, pad)
        flops = 2.0 * z.numel() * ins * kernel * kernel
        show(f"conv {tuple(x.shape)} {outs} {kernel}x{kernel} bf16 channels_last", calls, flops)


def convolutions_of_ours(
    x: Tensor, w: Tensor, bias: Tensor, z: Tensor, stride: int, pad: int
) -> Calls:
    fuseline = optional("fuseline")
    if fuseline is None:
        return {}
    return {
        "fuseline conv_add": lambda: fuseline.conv_add(x, w, bias, stride, pad),
        "fuseline conv_relu": lambda: fuseline.conv_relu(x, w, bias, stride, pad),
        "fuseline conv_add_relu": lambda: fuseline.conv_add_relu(x, w, bias, z, stride, pad),
    }


BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "mem_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}


def attention() -> None:
    for dim, heads in ((64, 32), (128, 16)):
        for causal in (False, True):
            for length in (512, 2048, 8192):
                batch = max(1, 16384 // length)
                q, k, v = (random(batch, heads, length, dim, grad=True) for _ in "qkv")
                work = 4.0 * batch * heads * length * length * dim * (0.5 if causal else 1)

                def sdpa(backend: SDPBackend, q=q, k=k, v=v, causal=causal) -> Tensor:
                    with sdpa_kernel(backend):
                        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

                forward: Calls = {n: lambda b=b, f=sdpa: f(b) for n, b in BACKENDS.items()}
                flex = compiled(flex_attention)
                rule = (lambda b, h, i, j: i >= j) if causal else None
                block = create_block_mask(rule, None, None, length, length) if rule else None
                forward["flex"] = lambda f=flex, m=block, q=q, k=k, v=v: f(q, k, v, block_mask=m)
                forward |= flash4(q, k, v, causal)
                title = f"attention {batch} x {heads} x {length} x {dim} bf16 causal={causal}"
                show(f"{title} forward", forward, work)
                show(f"{title} backward", {n: backward(f, (q, k, v)) for n, f in forward.items()},
                     2.5 * work)  # fmt: skip


def flash4(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Calls:
    fa4 = optional("flash_attn.cute")
    if fa4 is None:
        return {}
    heads_last = [t.transpose(1, 2) for t in (q, k, v)]

    def call() -> Any:
        out = fa4.flash_attn_func(*heads_last, causal=causal)
        return out[0] if isinstance(out, tuple) else out

    return {"fa4": call}


def backward(forward: Callable[[], Tensor], leaves: tuple[Tensor, ...]) -> Callable[[], Any]:
    """Return a call of the gradients; the forward runs when it is first called."""
    kept: list[Tensor] = []

    def call() -> Any:
        if not kept:
            y = forward()
            kept.extend((y, torch.randn_like(y)))
        return torch.autograd.grad(kept[0], leaves, kept[1], retain_graph=True)

    return call


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parts = {"products": products, "convolutions": convolutions, "attention": attention}
    parser.add_argument("part", choices=[*parts])
    name = torch.cuda.get_device_name()
    print(f"# {name}, torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}")
    parts[parser.parse_args().part]()
