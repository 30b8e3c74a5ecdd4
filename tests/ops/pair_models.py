"""Modules whose children follow one another, as libraries write them, and as they may not be."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

C = 6


class BasicBlock(nn.Module):
    """As torchvision writes it."""

    def __init__(self, planes: int = C, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(C, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.downsample = None
        if stride != 1 or planes != C:
            conv = nn.Conv2d(C, planes, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(planes))
        self.stride = stride

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.conv1(x)
        out = self.bn1(out)
        out = self.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    """As torchvision writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(C, 4, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, 2, 1, bias=False, groups=2)
        self.bn2 = nn.BatchNorm2d(4)
        self.conv3 = nn.Conv2d(4, 2 * C, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(2 * C)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(
            nn.Conv2d(C, 2 * C, 1, 2, bias=False), nn.BatchNorm2d(2 * C)
        )

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Net(nn.Module):
    """A stem, blocks and a head in one forward, as torchvision's ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, C, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(C)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(), BasicBlock(8, 2))
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.avgpool(self.layer1(x))
        return self.fc(torch.flatten(x, 1))


class Functional(nn.Module):
    """ReLU as a function."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(C, 5, 3, padding=1), nn.BatchNorm2d(5)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)), inplace=True)


class Mlp(nn.Module):
    """As timm writes it."""

    def __init__(self, act: nn.Module | None = None) -> None:
        super().__init__()
        self.fc1 = nn.Linear(C, 20)
        self.act = act or nn.GELU()
        self.drop1 = nn.Dropout(0.25)
        self.norm = nn.Identity()
        self.fc2 = nn.Linear(20, C)
        self.drop2 = nn.Dropout(0.25)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop1(self.act(self.fc1(x)))
        return self.drop2(self.fc2(self.norm(x)))


class SlowGELU(nn.Module):
    """GELU by its formula."""

    def forward(self, x: Tensor) -> Tensor:
        return 0.5 * x * (1.0 + torch.erf(x / 2**0.5))


class NewGELU(nn.Module):
    """GPT-2's."""

    def forward(self, x: Tensor) -> Tensor:
        inner = (2 / torch.pi) ** 0.5 * (x + 0.044715 * x.pow(3))
        return 0.5 * x * (1.0 + torch.tanh(inner))


class QuickGELU(nn.Module):
    """CLIP's, which is another function."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


def batch_norm(**kwargs: Any) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(C, 5, 3, 2, 1, dilation=2), nn.BatchNorm2d(5, **kwargs), nn.ReLU()
    )


# Model, shape of x, names of the first modules of its chains.
SERVED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], set[str]]] = {
    "BasicBlock": (BasicBlock, (2, C, 7, 9), {"conv1", "conv2"}),
    "downsample": (
        lambda: BasicBlock(8, 2), (3, C, 8, 7), {"conv1", "conv2", "downsample.0"},
    ),
    "Bottleneck": (Bottleneck, (2, C, 9, 7), {"conv1", "conv2", "conv3", "downsample.0"}),
    "Net": (
        Net, (2, 3, 64, 48),
        {"conv1", "layer1.1.downsample.0"}
        | {f"layer1.{n}.conv{i}" for n in (0, 1) for i in (1, 2)},
    ),
    "functional": (Functional, (2, C, 5, 6), {"conv"}),
    "momentum None": (lambda: batch_norm(momentum=None), (2, C, 9, 8), {"0"}),
    "not affine": (lambda: batch_norm(affine=False), (2, C, 9, 8), {"0"}),
    "no statistics": (lambda: batch_norm(track_running_stats=False), (2, C, 9, 8), {"0"}),
    "Sequential": (
        lambda: nn.Sequential(nn.Linear(C, 9), nn.GELU("tanh"), nn.Linear(9, 4)), (3, 5, C), {"0"},
    ),
    "Mlp": (Mlp, (2, 7, C), {"fc1"}),
    "SlowGELU": (lambda: Mlp(SlowGELU()), (4, C), {"fc1"}),
    "NewGELU": (lambda: Mlp(NewGELU()), (4, C), {"fc1"}),
}  # fmt: skip


class Bad(Functional):
    """Its forward is not what it seems, or not the same each time."""

    def __init__(self, body: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.calls, self.keep = body, 0, True
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)

    def plain(self, x: Tensor) -> Tensor:
        return F.relu(self.bn(self.conv(x)))


def takes_tensors(m: Any, x: Tensor) -> Tensor:
    return m.plain(2 * x) if isinstance(x, Tensor) else m.plain(x)


def by_values(m: Any, x: Tensor) -> Tensor:
    return m.plain(x) if x.sum() > 0 else -m.plain(x)


def by_chance(m: Any, x: Tensor) -> Tensor:
    return m.plain(x) if random.random() > 0.5 else -m.plain(x)


def by_torchs_chance(m: Any, x: Tensor) -> Tensor:
    return m.plain(x) if torch.rand(()) > 0.5 else -m.plain(x)


def counts(m: Any, x: Tensor) -> Tensor:
    m.calls += 1
    return m.plain(x)


def by_a_child(m: Any, x: Tensor) -> Tensor:
    return m.plain(x) * m.bn.eps


def by_a_childs_class(m: Any, x: Tensor) -> Tensor:
    return m.plain(x) if type(m.bn) is not nn.BatchNorm2d else -m.plain(x)


def by_a_parameter(m: Any, x: Tensor) -> Tensor:
    return m.plain(x) * float(m.scale)


def without_gradient(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        h = m.conv(x)
    return F.relu(m.bn(h))


def without_autocast(m: Any, x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return m.plain(x)


def checkpointed(m: Any, x: Tensor) -> Tensor:
    return checkpoint(m.plain, x, use_reentrant=False)


def by_gradient(m: Any, x: Tensor) -> Tensor:
    return m.plain(x) if torch.is_grad_enabled() else -m.plain(x)


def in_training_alone(m: Any, x: Tensor) -> Tensor:
    return m.plain(x) if m.training else m.bn(m.conv(x)).sigmoid() * m.undefined


def a_pair(m: Any, x: Tensor) -> Any:
    return m.plain(x), x


# Body of a forward, and what the report says of it.
REFUSED = {
    takes_tensors: "gives other results",
    by_values: "cannot be traced: TraceError",
    by_chance: "not of its argument (random)",
    by_torchs_chance: "not of its argument (aten::",
    by_a_child: "reads eps of its bn",
    by_a_childs_class: "gives other results",
    by_a_parameter: "cannot be traced",
    counts: "writes to its attributes",
    without_gradient: "in another way",
    without_autocast: "in another way",
    checkpointed: "raises StopIteration on a probe",
    by_gradient: "gives other results",
    in_training_alone: "cannot be traced: AttributeError",
    a_pair: "returns a tuple",
}


def twice(m: Any, x: Tensor) -> Tensor:
    h = m.conv(x)
    return F.relu(m.bn(h)) + h


def result_is_inner(m: Any, x: Tensor) -> Tensor:
    h = m.bn(m.conv(x))
    F.relu(h, inplace=True)
    return h


def between(m: Any, x: Tensor) -> Tensor:
    h = m.conv(x)
    x = x * 2
    return F.relu(m.bn(h)) + x.mean()


def other_order(m: Any, x: Tensor) -> Tensor:
    return m.bn(F.relu(m.conv(x)))


def writes(m: Any, x: Tensor) -> Tensor:
    m.seen.add_(1)
    return m.plain(x) * m.scale.to(x.dtype) + m.seen


# Bodies in which not all three follow one another: how many chains there are.
UNCHAINED = {twice: 0, result_is_inner: 1, between: 0, other_order: 0, writes: 1}
