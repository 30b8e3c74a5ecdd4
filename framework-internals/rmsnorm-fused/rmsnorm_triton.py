"""RMSNorm as Triton: a program reads its rows once, keeps them in registers, writes once."""

import torch
import triton
import triton.language as tl

PROGRAMS = 512  # of the backward: as many partial sums of dw


@triton.jit
def _forward(x_ptr, w_ptr, y_ptr, rstd_ptr, n, eps, BLOCK: tl.constexpr):
    # A program owns one row; reads x and w, writes y and rstd.
    row, j = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + j, mask=j < n, other=0).to(tl.float32)
    w = tl.load(w_ptr + j, mask=j < n, other=0).to(tl.float32)
    rstd = 1 / tl.sqrt(tl.sum(x * x) / n + eps)
    tl.store(rstd_ptr + row, rstd)
    tl.store(y_ptr + row * n + j, x * rstd * w, mask=j < n)


@triton.jit
def _backward(dy_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, dw_ptr, rows, n, BLOCK: tl.constexpr):
    # A program owns rows p, p + programs, ...; reads dy, x, w, rstd, writes dx and its sum of dw.
    first, j = tl.program_id(0), tl.arange(0, BLOCK)
    w = tl.load(w_ptr + j, mask=j < n, other=0).to(tl.float32)
    dw = tl.zeros((BLOCK,), tl.float32)
    for i in range(first, rows, tl.num_programs(0)):
        row = tl.cast(i, tl.int64)
        x = tl.load(x_ptr + row * n + j, mask=j < n, other=0).to(tl.float32)
        dy = tl.load(dy_ptr + row * n + j, mask=j < n, other=0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row)
        xhat = x * rstd
        g = dy * w
        dx = rstd * (g - xhat * tl.sum(g * xhat) / n)
        tl.store(dx_ptr + row * n + j, dx, mask=j < n)
        dw += dy * xhat
    tl.store(dw_ptr + tl.cast(first, tl.int64) * n + j, dw, mask=j < n)


def forward(x: torch.Tensor, w: torch.Tensor, eps: float) -> tuple[torch.Tensor, torch.Tensor]:
    x, w = x.contiguous(), w.contiguous()
    n = x.shape[-1]
    rows = x.numel() // n
    y, rstd = torch.empty_like(x), x.new_empty(rows, dtype=torch.float32)
    _forward[(rows,)](x, w, y, rstd, n, eps, triton.next_power_of_2(n), num_warps=_warps(n))
    return y, rstd


def backward(
    dy: torch.Tensor, x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    dy, x, w = dy.contiguous(), x.contiguous(), w.contiguous()
    n = x.shape[-1]
    rows = x.numel() // n
    programs = min(rows, PROGRAMS)
    dx, dw = torch.empty_like(x), x.new_empty(programs, n, dtype=torch.float32)
    _backward[(programs,)](
        dy, x, w, rstd, dx, dw, rows, n, triton.next_power_of_2(n), num_warps=_warps(n)
    )
    return dx, dw.sum(0).to(w.dtype)


def _warps(n: int) -> int:
    return min(max(triton.next_power_of_2(n) // 512, 1), 16)


class RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        y, rstd = forward(x, weight, eps)
        ctx.save_for_backward(x, weight, rstd)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        return *backward(dy, *ctx.saved_tensors), None


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """y = x * rsqrt(mean(x^2) + eps) * weight over the last dimension, at most 65536 long."""
    return RmsNorm.apply(x, weight, eps)
