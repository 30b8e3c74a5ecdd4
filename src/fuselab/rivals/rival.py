"""What the lab knows of another project's kernel."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuselab import environment
from fuseline.core.specs.spec import Inputs

HALF = (torch.float16, torch.bfloat16)
HALF_AND_SINGLE = (*HALF, torch.float32)


def _takes_all(**inputs: Any) -> str | None:
    return None


@dataclass(frozen=True)
class Rival:
    """Another project's kernel for one of our operators.

    name     the project, as the command line and the records call it
    op       our operator
    package  the distribution it comes in
    module   what to import of it
    bind     that module -> fn(**inputs), differentiable through autograd
    dtypes   what its kernels are made for; some take others and compute them in fp32
    limit    (**inputs) -> what else keeps it from these inputs, or None
    device   the device type that it runs on
    asked    whether it runs only if it is named
    """

    name: str
    op: str
    package: str
    module: str
    bind: Callable[[Any], Callable[..., Any]]
    dtypes: tuple[torch.dtype, ...] = HALF_AND_SINGLE
    limit: Callable[..., str | None] = _takes_all
    device: str = "cuda"
    asked: bool = False

    @property
    def version(self) -> str | None:
        """The distribution and its version, or None where it is not installed."""
        found = environment.version(self.package)
        return found and f"{self.package} {found}"

    def unavailable(self, device_type: str) -> str | None:
        """Return why it cannot run on a device type, or None; imports nothing."""
        if self.version is None:
            return f"{self.package} is not installed"
        if device_type == self.device:
            return None
        return f"{self.version} runs here on {self.device} only, got {device_type}"

    def load(self) -> Callable[..., Any]:
        """Import the project and return its fn(**inputs); raises what the import raises."""
        return self.bind(importlib.import_module(self.module))

    def refuses(self, inputs: Inputs) -> str | None:
        """Return why it cannot take these inputs, as far as that is known before a call."""
        for name, value in inputs.items():
            if isinstance(value, Tensor) and value.dtype not in self.dtypes:
                expected = ", ".join(map(_short, self.dtypes))
                return f"{self.version}: {name} is {_short(value.dtype)}, it takes {expected}"
        reason = self.limit(**inputs)
        return reason and f"{self.version}: {reason}"


def of_rows(logits: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits and targets with one dimension of rows."""
    return logits.flatten(0, -2), target.flatten()


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
