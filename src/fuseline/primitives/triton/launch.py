"""Eager launches past Triton's binder, which takes longer than a small kernel runs.

A compiled kernel is kept under all that its compilation depended on and handed to the driver by
the C function under its launcher. Where Triton is one that we have not read, or anybody listens to
launches (a profiler's hooks), the launch is `kernel[grid]`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
import triton
from triton import knobs
from triton.tools.tensor_descriptor import TensorDescriptor

from fuseline.primitives.triton import Wrap
from fuseline.primitives.triton.descriptors import Below, below_descriptors

Grid = tuple[int, ...]

# Read, not run in all: 3.6.0, 3.7.0 and 3.9.0 (torch 2.10 to 2.15).
FIRST, LAST = (3, 6), (3, 9)
ALIGNED = 16
_INT32 = 1 << 31

_HOOKS: Any = knobs.runtime
_current_device = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
_current_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)


class Code(NamedTuple):
    """A compiled kernel as the C function takes it: call(x, y, z, stream, *head, arguments).

    nested   whether the arguments are one tuple (Triton 3.7) or arguments of the call (3.6)
    held     what must live as long: Triton 3.9 unloads code that nobody holds
    """

    call: Callable[..., None]
    head: tuple[Any, ...]
    constants: tuple[Any, ...]
    nested: bool
    held: tuple[Any, ...]


_kept: dict[tuple[Any, ...], Code] = {}


def launch(
    kernel: Any,
    grid: Grid,
    args: tuple[Any, ...],
    meta: Mapping[str, Any],
    wrap: Wrap | None = None,
) -> None:
    """Run kernel[grid](*args, **meta) on the device of args[0], a tensor, and its current stream.

    `args` are tensors, Triton's descriptors of them or None, the first not None, then integers, all
    in the kernel's do_not_specialize. With `wrap` it is wrap(kernel)[grid] that is called, and
    nothing else happens: a compiler's trace.
    """
    if wrap is not None:
        _require_plain(kernel, args)
        wrap(kernel)[grid](*args, **meta)
        return
    index = _device(args[0])
    if index < 0:  # the interpreter's
        kernel[grid](*args, **meta)
    elif index != _current_device():
        with torch.cuda.device(index):
            launch(kernel, grid, args, meta)
    elif _heard(kernel):
        kernel[grid](*args, **meta)
    else:
        tensors, numbers = _split(args)
        pointers = _pointers(tensors)
        key = _key(kernel, index, tensors, pointers, numbers, meta)
        code = _kept.get(key)
        if code is not None:
            given = (*pointers, *numbers, *code.constants)
            arguments = (given,) if code.nested else given
            code.call(*_three(grid), _current_stream(index), *code.head, *arguments)
        else:
            _require_plain(kernel, args)
            code = _code(kernel, kernel[grid](*args, **meta), len(args), meta)
            if code is not None:
                _kept[key] = code


def ready(
    kernel: Any, grid: Grid, args: tuple[Any, ...], meta: Mapping[str, Any], free: int = 0
) -> Callable[..., bool] | None:
    """Return what repeats a launch on other tensors of the same kind, None if there is no such.

    It takes the addresses of the tensors among `args`, which must be aligned to 16 bytes, None for
    None, then the first `free` integers; False means that it did not launch, and `launch` must.
    """
    index = _device(args[0])
    tensors, numbers = _split(args)
    pointers = _pointers(tensors)
    code = _kept.get(_key(kernel, index, tensors, pointers, numbers, meta)) if index >= 0 else None
    if code is None or any(type(p) is int and p % ALIGNED for p in pointers):
        return None
    three = _three(grid)
    call, head, constants, nested, _ = code
    rest = (*numbers[free:], *constants)
    if any(type(t) is TensorDescriptor for t in tensors):
        below = below_descriptors(call, tensors)
        return _again_described(kernel, index, three, code, below, rest) if below else None

    # All in one function, on its own variables: each call and look-up less is a hundredth of it.
    def again(*first: int | None) -> bool:
        if index != _current_device() or _heard(kernel):
            return False
        given = first + rest
        call(*three, _current_stream(index), *head, *((given,) if nested else given))
        return True

    return again


def _again_described(
    kernel: Any, index: int, three: Grid, code: Code, below: Below, rest: tuple[Any, ...]
) -> Callable[..., bool]:
    """Return what `ready` does where there are descriptors."""
    call, makers = below
    head, nested, count = code.head, code.nested, len(makers)

    def again(*first: int | None) -> bool:
        if index != _current_device() or _heard(kernel):
            return False
        made: list[Any] = []
        for make, pointer in zip(makers, first, strict=False):
            made += make(pointer)
        given = (*made, *first[count:], *rest)
        call(*three, _current_stream(index), *head, *((given,) if nested else given))
        return True

    return again


class Launch:
    """A launch that is made again and again, on tensors of the same kind.

    numbers  its integers, but for those that change, which come before them
    aligned  whether all tensors begin at multiples of 16 bytes
    blocks   of the first tensors: of the blocks that a descriptor is to be of, or None
    """

    def __init__(
        self,
        kernel: Any,
        grid: Grid,
        numbers: tuple[int, ...],
        meta: Mapping[str, Any],
        aligned: bool,
        blocks: Sequence[list[int] | None] = (),
    ) -> None:
        self.kernel, self.grid, self.numbers, self.meta = kernel, grid, numbers, meta
        self._blocks, self._tries = blocks, aligned
        self._again: Callable[..., bool] | None = None

    def __call__(
        self, tensors: tuple[torch.Tensor | None, ...], *changing: int, wrap: Wrap | None = None
    ) -> None:
        """Launch as `launch` does."""
        if self._again and wrap is None:
            pointers = [None if t is None else t.data_ptr() for t in tensors]
            if self._again(*pointers, *changing):
                return
        pairs = zip_longest(tensors, self._blocks)
        given = (t if b is None else TensorDescriptor.from_tensor(t, b) for t, b in pairs)
        args = (*given, *changing, *self.numbers)
        launch(self.kernel, self.grid, args, self.meta, wrap)
        if self._tries and wrap is None:
            self._tries = False
            self._again = ready(self.kernel, self.grid, args, self.meta, len(changing))


def _device(first: Any) -> int:
    """Return the index of a tensor's device, of a descriptor's that of its tensor."""
    return (first.base if type(first) is TensorDescriptor else first).get_device()  # type: ignore[no-any-return]


def _require_plain(kernel: Any, args: tuple[Any, ...]) -> None:
    """Refuse a kernel whose code depends on an integer: code is kept without a look at it."""
    leading = len(_split(args)[0])
    for i, (param, a) in enumerate(zip(getattr(kernel, "params", ()), args, strict=False)):
        what = f"{kernel.__name__}: the argument {param.name}"
        if isinstance(a, torch.Tensor) and i >= leading:
            raise TypeError(f"{what} is a tensor behind an integer, expected tensors to lead")
        if isinstance(a, int) and not param.do_not_specialize:
            raise TypeError(f"{what} is specialised, expected it in do_not_specialize")


def _heard(kernel: Any) -> bool:
    """Say whether a hook wants to know of the launch."""
    try:
        return bool(
            _HOOKS.launch_enter_hook.calls or _HOOKS.launch_exit_hook.calls or kernel.pre_run_hooks
        )
    except AttributeError:  # a hook in the place of the chains, or no JITFunction
        return True


def _split(args: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
    """Return the tensors, or None, that lead, and the integers."""
    count = 0
    for a in args:
        if isinstance(a, int):
            break
        count += 1
    return args[:count], args[count:]


def _pointers(tensors: tuple[Any, ...]) -> list[Any]:
    """Return what the C function takes of tensors, descriptors as they are.

    An address is taken as it is; of a tensor the driver is asked where it lies.
    """
    return [t if t is None or type(t) is TensorDescriptor else t.data_ptr() for t in tensors]


def _described(descriptor: TensorDescriptor) -> tuple[Any, ...]:
    return (descriptor.base.dtype, *descriptor.block_shape, descriptor.padding)


def _key(
    kernel: Any,
    index: int,
    tensors: tuple[Any, ...],
    pointers: list[Any],
    numbers: tuple[int, ...],
    meta: Mapping[str, Any],
) -> tuple[Any, ...]:
    """Return what Triton's specialisation sees of a launch, and the device that has the code."""
    kinds = [
        None if p is None else _described(t) if p is t else (t.dtype, p % ALIGNED == 0)
        for t, p in zip(tensors, pointers, strict=True)
    ]
    long: Any = None
    if numbers and not (min(numbers) >= -_INT32 and max(numbers) < _INT32):
        long = tuple(not -_INT32 <= n < _INT32 for n in numbers)
    return (id(kernel), index, *meta.values(), *kinds, long)


def _three(grid: Grid) -> Grid:
    return (*grid, 1, 1)[:3]


def _known_version() -> bool:
    return FIRST <= tuple(map(int, triton.__version__.split(".")[:2])) <= LAST


def _code(kernel: Any, compiled: Any, count: int, meta: Mapping[str, Any]) -> Code | None:
    """Return a compiled kernel for direct calls, or None where it is not as we know it.

    count: its arguments that are not constants.
    """
    launcher: Any = getattr(compiled, "run", None)
    if type(launcher).__name__ != "CudaLauncher" or not _known_version():
        return None
    if getattr(launcher, "gsan_enabled", False):
        return None
    if launcher.global_scratch_size or launcher.profile_scratch_size:
        return None
    how = (compiled.function, launcher.launch_cooperative_grid, launcher.launch_pdl)
    packed, scratch = compiled.packed_metadata, (None, None)
    nobody = (None, None, None)  # launch_metadata and the two hooks
    nested = hasattr(launcher, "arg_annotations")
    head: tuple[Any, ...] = (*how, *scratch, packed, *nobody)
    if nested:
        signature = (launcher.arg_annotations, launcher.kernel_signature)
        head = (*how, packed, *nobody, *scratch, *signature)
    constants = tuple(meta[name] for name in kernel.arg_names[count:])
    return Code(launcher.launch, head, constants, nested, (kernel, compiled))
