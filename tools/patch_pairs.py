"""fuseline.patch on a GPU, of Conv + BN + ReLU and Linear + GELU: what it serves, what it brings.

    python tools/patch_pairs.py

For a ResNet-50 and for feed-forward blocks: how long patch() takes, what it serves and keeps, the
difference in eval, and the time of eval and of a training step beside the model's own, in turn:
medians, and the median of ratios. Convolutions are served by name, as "auto" leaves them to torch.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import fuseline

LAYERS = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # channels, blocks, stride
FEED_FORWARD = ((8 * 197, 768, 3072), (8192, 4096, 16384))  # rows, columns, hidden
ROUNDS = 20


class Bottleneck(nn.Module):
    """torchvision's block."""

    def __init__(self, channels: int, planes: int, stride: int) -> None:
        super().__init__()
        wide = 4 * planes
        self.conv1, self.bn1 = nn.Conv2d(channels, planes, 1, bias=False), nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv3, self.bn3 = nn.Conv2d(planes, wide, 1, bias=False), nn.BatchNorm2d(wide)
        self.relu, self.downsample = nn.ReLU(inplace=True), None
        if stride != 1 or channels != wide:
            conv = nn.Conv2d(channels, wide, 1, stride, bias=False)
            self.downsample = nn.Sequential(conv, nn.BatchNorm2d(wide))

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)  # type: ignore[no-any-return]


def resnet50() -> nn.Module:
    """Return a ResNet-50 of torchvision's form with random weights."""
    channels, blocks = 64, []
    for planes, count, stride in LAYERS:
        for i in range(count):
            blocks.append(Bottleneck(channels, planes, stride if i == 0 else 1))
            channels = 4 * planes
    stem = (nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True))
    end = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
    return nn.Sequential(*stem, nn.MaxPool2d(3, 2, 1), *blocks, *end)


def beside(own: Callable[[], object], patched: Callable[[], object]) -> str:
    """Return the times of both, called in turn."""
    times: tuple[list[float], list[float]] = ([], [])
    for i in range(-2, ROUNDS):
        for call, to in zip((own, patched), times, strict=True):
            torch.cuda.synchronize()
            start = time.perf_counter()
            call()
            torch.cuda.synchronize()
            if i >= 0:
                to.append(time.perf_counter() - start)
    ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
    a, b = (1e3 * statistics.median(t) for t in times)
    return f"own {a:.2f} ms, patched {b:.2f}, ratio {ratio:.3f}"


def show(name: str, own: nn.Module, x: Tensor, impl: str) -> None:
    """Print the lines of one model, under autocast to bfloat16."""
    patched, start = copy.deepcopy(own), time.perf_counter()
    report = fuseline.patch(patched, impl=impl)
    took = time.perf_counter() - start
    print(f"{name}: patch {took:.1f} s\n{report}")
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        a, b = own.eval()(x), patched.eval()(x)
        print(f"  difference {float((a - b).abs().max() / a.abs().max()):.1e}")
        print("  eval:", beside(lambda: own(x), lambda: patched(x)))
    own.train(), patched.train()

    def step(model: nn.Module) -> None:
        model.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(x).float().square().mean()
        loss.backward()

    print("  training step:", beside(lambda: step(own), lambda: step(patched)), flush=True)


def main() -> None:
    print(torch.cuda.get_device_name(), torch.__version__)
    last, plain = torch.channels_last, torch.contiguous_format  # whose proof takes long
    for batch, form in ((1, last), (32, last), (128, last), (32, plain)):
        x = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=form)
        net = resnet50().cuda().to(memory_format=form)
        show(f"ResNet-50, batch {batch}, {form}", net, x, "triton")
    for rows, columns, hidden in FEED_FORWARD:
        for approximate in ("tanh", "none"):
            layers = (nn.Linear(columns, hidden), nn.GELU(approximate), nn.Linear(hidden, columns))
            x = torch.randn(rows, columns, device="cuda")
            name = f"{rows} x {columns} x {hidden}, GELU {approximate}"
            show(name, nn.Sequential(*layers).cuda(), x, "auto")


if __name__ == "__main__":
    main()
