"""Eager launches past Triton's binder, which takes longer than a small kernel runs.

A compiled kernel is kept under all that its compilation depended on and handed to the driver by
the C function under its launcher. Where Triton is one that we have not read, or anybody listens to
launches (a profiler's hooks), the launch is `kernel[grid]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import triton
from triton import knobs

Grid = tuple[int, ...]
Run = Callable[[Grid, int, tuple[Any, ...]], None]

# Read, not run in all: 3.6.0, 3.7.0 and 3.9.0 (torch 2.10 to 2.15).
FIRST, LAST = (3, 6), (3, 9)
_ALIGNED = 16
_INT32 = 1 << 31

_HOOKS: Any = knobs.runtime
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)

_kept: dict[tuple[Any, ...], Run] = {}


def launch(kernel: Any, grid: Grid, args: tuple[Any, ...], meta: Mapping[str, int]) -> None:
    """Run kernel[grid](*args, **meta) on the device of args[0], a tensor, and its current stream.

    All integers among `args` must be in the kernel's do_not_specialize.
    """
    index = args[0].get_device()
    if index < 0:  # the interpreter's
        kernel[grid](*args, **meta)
    elif index != _current_device():
        with torch.cuda.device(index):
            launch(kernel, grid, args, meta)
    elif not _unheard(kernel):
        kernel[grid](*args, **meta)
    else:
        key = _key(kernel, index, args, meta)
        run = _kept.get(key)
        if run is not None:
            run(_three(grid), _current_stream(index), _pointers(args))
        else:
            run = _direct(kernel, kernel[grid](*args, **meta), len(args), meta)
            if run is not None:
                _kept[key] = run


def ready(
    kernel: Any, grid: Grid, args: tuple[Any, ...], meta: Mapping[str, int]
) -> Callable[..., bool] | None:
    """Return what repeats a launch on other tensors of the same kind, None if there is no such.

    It takes the addresses of the tensors among `args`, which must lead and be aligned to 16 bytes,
    None for None; False means that it did not launch, and `launch` must.
    """
    index = args[0].get_device()
    found = _kept.get(_key(kernel, index, args, meta)) if index >= 0 else None
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    if found is None or any(a.data_ptr() % _ALIGNED for a in tensors):
        return None
    run, three = found, _three(grid)
    rest = tuple(a for a in args if isinstance(a, int))

    def again(*pointers: int | None) -> bool:
        if index != _current_device() or not _unheard(kernel):
            return False
        run(three, _current_stream(index), pointers + rest)
        return True

    return again


def _unheard(kernel: Any) -> bool:
    """Say whether no hook wants to know of the launch."""
    try:
        return not (
            _HOOKS.launch_enter_hook.calls or _HOOKS.launch_exit_hook.calls or kernel.pre_run_hooks
        )
    except AttributeError:  # a hook in the place of the chains, or no JITFunction
        return False


def _key(
    kernel: Any, index: int, args: tuple[Any, ...], meta: Mapping[str, int]
) -> tuple[Any, ...]:
    """Return what Triton's specialisation sees of a launch, and the device that has the code."""
    return (id(kernel), index, *meta.values(), *map(_kind, args))


def _kind(a: Any) -> Any:
    if isinstance(a, torch.Tensor):
        return a.dtype, a.data_ptr() % _ALIGNED == 0
    return None if a is None else -_INT32 <= a < _INT32


def _pointers(args: tuple[Any, ...]) -> tuple[Any, ...]:
    # An address is taken as it is; of a tensor the driver is asked where it lies.
    return tuple(a.data_ptr() if isinstance(a, torch.Tensor) else a for a in args)


def _three(grid: Grid) -> Grid:
    return (*grid, 1, 1)[:3]


def _known_version() -> bool:
    return FIRST <= tuple(map(int, triton.__version__.split(".")[:2])) <= LAST


def _direct(kernel: Any, compiled: Any, count: int, meta: Mapping[str, int]) -> Run | None:
    """Return what launches a compiled kernel, or None where it is not as we know it.

    count: its arguments that are not constants.
    """
    launcher: Any = getattr(compiled, "run", None)
    if type(launcher).__name__ != "CudaLauncher" or not _known_version():
        return None
    if getattr(launcher, "gsan_enabled", False):
        return None
    if launcher.global_scratch_size or launcher.profile_scratch_size:
        return None
    # The run's own reference to the code: Triton 3.9 unloads what nobody holds.
    function, call, held = compiled.function, launcher.launch, (kernel, compiled)
    how = (launcher.launch_cooperative_grid, launcher.launch_pdl)
    constants = tuple(meta[name] for name in kernel.arg_names[count:])
    nobody = (None, None, None)  # launch_metadata and the two hooks
    if hasattr(launcher, "arg_annotations"):  # from 3.7 on
        head = (function, *how, compiled.packed_metadata, *nobody, None, None)
        signature = (launcher.arg_annotations, launcher.kernel_signature)

        def run(grid: Grid, stream: int, args: tuple[Any, ...], _: Any = held) -> None:
            call(*grid, stream, *head, *signature, args + constants)
    else:
        head = (function, *how, None, None, compiled.packed_metadata, *nobody)

        def run(grid: Grid, stream: int, args: tuple[Any, ...], _: Any = held) -> None:
            call(*grid, stream, *head, *args, *constants)

    return run
