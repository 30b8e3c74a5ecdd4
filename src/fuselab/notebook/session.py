"""The session around a comparison: what outlives a call is put back as it was."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
import torch._dynamo.config
import torch._functorch.config
import torch._inductor.config

from fuselab.worker.protocol import describe, probe
from fuseline.testing import settings

Knob = tuple[Callable[[], Any], Callable[[Any], object]]


class Session:
    """Holds the settings of the process; a context manager."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stack = ExitStack()
        self.fault = ""

    def __enter__(self) -> Session:
        self._outer = [(*knob, knob[0]()) for knob in _knobs(self._device)]
        # Kineto notes each profile on stderr. It reads this once, so its log stays off.
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        self._stack.enter_context(torch.inference_mode(False))
        devices = []
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
            devices = [self._device]
        self._stack.enter_context(torch.random.fork_rng(devices))
        self._inner = [(*knob, knob[0]()) for knob in _knobs(self._device)]
        self._settings = settings.snapshot(self._device)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
        _put_back(self._outer)

    def recover(self) -> None:
        """Clear up behind a group; `fault` says why the process is no longer sane, or ""."""
        try:
            _put_back(self._inner)
            gc.collect()
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            changed = settings.changes(self._settings, settings.snapshot(self._device))
            self.fault = f"a setting stays changed: {changed}" if changed else probe(self._device)
        except Exception as error:
            self.fault = describe(error)


def _put_back(saved: list[tuple[Callable[[], Any], Callable[[Any], object], Any]]) -> None:
    for get, put, value in saved:
        if get() != value:
            put(value)


def _knobs(device: torch.device) -> list[Knob]:
    """Return how to read and how to set whatever an implementation or the lab may change."""
    backend, kind = torch.backends.cudnn, device.type
    knobs: list[Knob] = [
        (gc.isenabled, lambda on: gc.enable() if on else gc.disable()),
        (lambda: dict(os.environ), _set_environment),
        (os.getcwd, os.chdir),
        (torch.get_default_dtype, torch.set_default_dtype),
        (torch.get_default_device, _set_default_device),
        (torch.is_grad_enabled, torch.set_grad_enabled),
        (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
        (lambda: torch.is_autocast_enabled(kind), lambda on: torch.set_autocast_enabled(kind, on)),
        (lambda: torch.get_autocast_dtype(kind), lambda to: torch.set_autocast_dtype(kind, to)),
        (torch.get_num_threads, torch.set_num_threads),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
        (lambda: backend.enabled, lambda on: setattr(backend, "enabled", on)),
        (lambda: backend.benchmark, lambda on: setattr(backend, "benchmark", on)),
    ]
    if kind == "cuda":
        knobs.append((torch.cuda.current_device, torch.cuda.set_device))
        knobs.append((torch.cuda.current_stream, torch.cuda.set_stream))
    for module in (torch._dynamo.config, torch._functorch.config, torch._inductor.config):
        knobs.append((module.get_config_copy, partial(_set_config, module)))
    return knobs


def _set_environment(wanted: Mapping[str, str]) -> None:
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)


def _set_default_device(device: torch.device) -> None:
    # Set by name, the default of all would cost every call of torch a detour.
    torch.set_default_device(None if device.type == "cpu" else device)


def _set_config(module: Any, wanted: Mapping[str, Any]) -> None:
    for name, value in module.get_config_copy().items():
        if name in wanted and value != wanted[name]:
            setattr(module, name, wanted[name])
