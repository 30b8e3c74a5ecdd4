"""Modules that are a norm, nearly one, or one at times: what fuseline.patch has to tell apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module, Parameter

C = 8


def rms(x: Tensor, eps: float, dims: Any = -1) -> Tensor:
    h = x.float() if x.dtype != torch.float64 else x
    return (h * torch.rsqrt(h.square().mean(dims, keepdim=True) + eps)).to(x.dtype)


def centred(x: Tensor, eps: float, dims: Any = -1) -> Tensor:
    h = x.float() if x.dtype != torch.float64 else x
    return rms(h - h.mean(dims, keepdim=True), eps, dims).to(x.dtype)


class Norm(Module):
    """A weight, an eps and `rule`, of (module, x), for a forward."""

    def __init__(self, rule: Callable[[Any, Tensor], Any], bias: bool = False, **more: Any) -> None:
        super().__init__()
        self.weight, self.eps = Parameter(torch.rand(C) + 0.5), 1e-5
        if bias:
            self.bias = Parameter(torch.rand(C) - 0.5)
        self.rule = rule
        for name, value in more.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Any:
        return self.rule(self, x)


def plain(m: Any, x: Tensor) -> Tensor:
    return rms(x, m.eps) * m.weight


def layer(m: Any, x: Tensor) -> Tensor:
    return centred(x, m.eps) * m.weight + m.bias


def over_channels(m: Any, x: Tensor) -> Tensor:
    return rms(x, m.eps, 1) * m.weight.view(-1, *[1] * (x.dim() - 2))


def transposed(m: Any, x: Tensor) -> Tensor:
    return plain(m, x.transpose(1, -1)).transpose(1, -1)


def channels_if_4d(m: Any, x: Tensor) -> Tensor:
    return over_channels(m, x) if x.dim() == 4 else plain(m, x)


def channels_if_they_fit(m: Any, x: Tensor) -> Tensor:
    return over_channels(m, x) if x.dim() > 2 and x.shape[1] == C else plain(m, x)


def whole_sample(m: Any, x: Tensor) -> Tensor:
    return rms(x, m.eps, tuple(range(1, x.dim()))) * m.weight


def whole_batch(m: Any, x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean() + m.eps) * m.weight


def bounded_in(training: bool, by: float) -> Callable[[Any, Tensor], Tensor]:
    def rule(m: Any, x: Tensor) -> Tensor:
        y = plain(m, x)
        return y.clamp(-by, by) if m.training == training else y

    return rule


def counted(m: Any, x: Tensor) -> Tensor:
    m.calls += 1
    return plain(m, x) * (2.0 if m.calls > 300 else 1.0)


def noted(m: Any, x: Tensor) -> Tensor:
    m.log.append(x.shape)
    return plain(m, x) * (1.0 + (len(m.log) > 300))


def batch_if_many(m: Any, x: Tensor) -> Tensor:
    return whole_batch(m, x) if x.dim() > 1 and x.shape[0] > 1 else plain(m, x)


def other_when_cast(m: Any, x: Tensor) -> Tensor:
    return plain(m, x) * (0.5 if torch.is_autocast_enabled(x.device.type) else 1.0)


def other_without_grad(m: Any, x: Tensor) -> Tensor:
    return plain(m, x) * (1.0 if torch.is_grad_enabled() else 0.5)


def in_place(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        x.mul_(2.0)
    return rms(x, m.eps) * m.weight


def one_row_detached(m: Any, x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, True) + m.eps).detach() * m.weight


def two_eps(m: Any, x: Tensor) -> Tensor:
    return rms(x, m.variance_epsilon) * m.weight


def other_where(condition: Callable[[Tensor], bool]) -> Callable[[Any, Tensor], Tensor]:
    return lambda m, x: plain(m, x) * (0.5 if condition(x) else 1.0)


def is_channels_last(x: Tensor) -> bool:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.dim() in formats and x.is_contiguous(memory_format=formats[x.dim()])


class ClippedGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> Tensor:
        return dy[0].clamp(-2.0, 2.0)


class Scale:
    """A callable whose result changes with an attribute."""

    by = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        return x * self.by


# Rules that are the norm whatever comes: name -> (rule, has a bias, more attributes).
GOOD: dict[str, tuple[Any, bool, dict[str, Any]]] = {
    "plain": (plain, False, {}),
    "rounds twice": (lambda m, x: m.weight * rms(x, m.eps), False, {}),
    "no upcast": (
        lambda m, x: x * torch.rsqrt((x * x).mean(-1, True) + m.eps) * m.weight,
        False,
        {},
    ),
    "gemma": (lambda m, x: (rms(x, m.eps).float() * (1 + m.weight.float())).to(x.dtype), False, {}),
    "layer": (layer, True, {}),
    "F.layer_norm": (lambda m, x: F.layer_norm(x, (C,), m.weight, m.bias, m.eps), True, {}),
    "keeps an attribute": (plain, False, {"kind": "rms", "sizes": [1, 2]}),
    "two names of eps": (two_eps, False, {"variance_epsilon": 1e-5}),
    "an Identity for a row": (lambda m, x: plain(m, x) if x.dim() else x, False, {}),
}
BAD: dict[str, tuple[Any, bool, dict[str, Any]]] = {
    "over channels": (over_channels, False, {}),
    "transposed": (transposed, False, {}),
    "channels of 4-D": (channels_if_4d, False, {}),
    "channels that fit": (channels_if_they_fit, False, {}),
    "whole sample": (whole_sample, False, {}),
    "whole batch": (whole_batch, False, {}),
    "batch if there is one": (batch_if_many, False, {}),
    "whole sample, centred": (
        lambda m, x: centred(x, m.eps, tuple(range(1, x.dim()))) * m.weight,
        False,
        {},
    ),
    "bounded in eval": (bounded_in(False, 1.5), False, {}),
    "bounded in training": (bounded_in(True, 1.5), False, {}),
    "bounded at 3.5": (lambda m, x: plain(m, x).clamp(-3.5, 3.5), False, {}),
    "bounded at 1000": (lambda m, x: plain(m, x).clamp(-1e3, 1e3), False, {}),
    "no NaN": (lambda m, x: torch.nan_to_num(plain(m, x)), False, {}),
    "dropout": (lambda m, x: F.dropout(plain(m, x), 0.2, m.training), False, {}),
    "little dropout": (lambda m, x: F.dropout(plain(m, x), 1e-4, m.training), False, {}),
    "noise": (lambda m, x: plain(m, x) * (1 + 1e-7 * torch.randn_like(x)), False, {}),
    "counts": (counted, False, {"calls": 0}),
    "notes": (noted, False, {"log": []}),
    "an attribute that is a tensor": (lambda m, x: plain(m, x) * m.s, False, {"s": torch.ones(())}),
    "other when cast": (other_when_cast, False, {}),
    "other without grad": (other_without_grad, False, {}),
    "in place": (in_place, False, {}),
    "detached": (one_row_detached, False, {}),
    "squeezes": (lambda m, x: plain(m, x).squeeze(0), False, {}),
    "squeezes all": (lambda m, x: plain(m, x).squeeze(), False, {}),
    "two results": (lambda m, x: (plain(m, x), x), False, {}),
    "3-D alone": (lambda m, x: plain(m, x.permute(0, 1, 2)), False, {}),
    "1-D is itself": (lambda m, x: plain(m, x) if x.dim() > 1 else x, False, {}),
    "float": (lambda m, x: rms(x.float(), m.eps) * m.weight.float(), False, {}),
    "L2": (
        lambda m, x: F.normalize(x.float(), dim=-1, eps=m.eps).to(x.dtype) * m.weight,
        False,
        {},
    ),
    "eps outside": (
        lambda m, x: x / (x.square().mean(-1, True).sqrt() + m.eps) * m.weight,
        False,
        {},
    ),
    "gelu after": (lambda m, x: F.gelu(plain(m, x)), False, {}),
    "scaled once": (lambda m, x: plain(m, x) * m.by, False, {"by": 1.0}),
    "mean of a sample": (lambda m, x: layer(m, x) * (C / (C - 1)) ** 0.5, True, {}),
    "other when long": (other_where(lambda x: x.numel() > 5000), False, {}),
    "other for a large batch": (other_where(lambda x: x.dim() > 1 and len(x) > 256), False, {}),
    "other for one token": (
        other_where(lambda x: x.dim() == 3 and len(x) > 1 and x.shape[1] == 1),
        False,
        {},
    ),
    "other when sliced": (other_where(lambda x: x.stride(-1) > 1), False, {}),
    "other when channels last": (other_where(is_channels_last), False, {}),
    "other in inference": (
        other_where(lambda x: torch.is_inference_mode_enabled()),
        False,
        {},
    ),
    "double in inference": (
        lambda m, x: plain(m, x).double() if torch.is_inference_mode_enabled() else plain(m, x),
        False,
        {},
    ),
    "drops small rows": (
        lambda m, x: plain(m, x) * (x.abs().amax(-1, True) > 1e-4),
        False,
        {},
    ),
    "eps of the dtype": (
        lambda m, x: rms(x, max(m.eps, torch.finfo(x.dtype).eps)) * m.weight,
        False,
        {},
    ),
    "weight rounded": (
        lambda m, x: rms(x, m.eps) * m.weight.bfloat16().to(x.dtype),
        False,
        {},
    ),
    "the larger of variance and eps": (
        lambda m, x: x * torch.rsqrt(x.square().mean(-1, True).clamp(min=m.eps)) * m.weight,
        False,
        {},
    ),
    "clipped gradient": (lambda m, x: ClippedGradient.apply(plain(m, x)), False, {}),
    "a list it reads": (lambda m, x: plain(m, x) * m.by[0], False, {"by": [1.0]}),
    "a callable with state": (lambda m, x: m.scale(plain(m, x)), False, {"scale": Scale()}),
    "first eps alone": (two_eps, False, {"variance_epsilon": 1e-5, "norm_eps": 1e-5}),
}


def cases() -> dict[str, Callable[[], Module]]:
    """Return what makes each module; those of torch beside ours."""
    ours = {
        name: lambda rule=rule, bias=bias, more=more: Norm(rule, bias, **more)
        for name, (rule, bias, more) in (GOOD | BAD).items()
    }
    return ours | {  # type: ignore[return-value]
        "nn.RMSNorm": lambda: torch.nn.RMSNorm(C),
        "nn.RMSNorm of two": lambda: torch.nn.RMSNorm((2, C), eps=1e-4),
        "nn.RMSNorm of none": lambda: torch.nn.RMSNorm(C, elementwise_affine=False),
        "nn.LayerNorm": lambda: torch.nn.LayerNorm(C),
        "nn.LayerNorm, no bias": lambda: torch.nn.LayerNorm(C, bias=False),
        "nn.LayerNorm of two": lambda: torch.nn.LayerNorm((2, C)),
        "nn.GroupNorm(1)": lambda: torch.nn.GroupNorm(1, C),
        "nn.GroupNorm(2)": lambda: torch.nn.GroupNorm(2, C),
        "nn.GroupNorm(C)": lambda: torch.nn.GroupNorm(C, C),
        "nn.InstanceNorm1d": lambda: torch.nn.InstanceNorm1d(C, affine=True),
        "nn.InstanceNorm2d": lambda: torch.nn.InstanceNorm2d(C, affine=True),
        "nn.BatchNorm1d": lambda: torch.nn.BatchNorm1d(C, track_running_stats=False),
        "nn.LocalResponseNorm": lambda: torch.nn.LocalResponseNorm(2),
    }
