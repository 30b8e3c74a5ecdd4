"""Our kernels in the place of ATen's: enable, disable, enabled, status."""

from __future__ import annotations

import threading
import warnings
from collections import ChainMap, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch.utils import enable_single_level_autograd_function

from fuseline.core import native
from fuseline.core.registration import overrides
from fuseline.core.registration.overrides import KEYS, Override
from fuseline.ops.bias_gelu.op import ATEN as GELU
from fuseline.ops.layer_norm.op import ATEN as LAYER_NORM
from fuseline.ops.layer_norm.op import SLOWER_THAN_TORCH
from fuseline.ops.log_softmax.op import ATEN as LOG_SOFTMAX
from fuseline.ops.rms_norm.op import ATEN as RMS_NORM
from fuseline.ops.softmax.op import ATEN as SOFTMAX

# Operator: the ATen operators that its kernels stand in for, by name, with the schema they know.
TAKEOVERS = {
    "rms_norm": RMS_NORM,
    "layer_norm": LAYER_NORM,
    "softmax": SOFTMAX,
    "log_softmax": LOG_SOFTMAX,
    "gelu": GELU,
}
# What enable() takes over only if it is named, since some of torch's calls become slower, and why.
BY_NAME: dict[tuple[str, str], str] = {
    **{
        ("layer_norm", device): "more precise than ATen's, and slower for some shapes"
        for device in SLOWER_THAN_TORCH
    },
    ("gelu", "cpu"): (
        'slower for fewer than 2048 elements, and by 1 to 3 us in each call with approximate="none"'
    ),
}
# Calls of what is taken over that our kernels do not serve: they are handed on.
HANDED_ON = {
    "softmax": "scalars and half types to float32",
    "log_softmax": "scalars and half types to float32",
    "gelu": 'approximate="none" and x with gaps',
}
OVERRIDDEN = "Overriding a previously registered kernel"
NOTE = "torch.compile takes these operators apart before kernels are looked up: none of its calls"

Pair = tuple[str, str]  # an operator, a kind of device
Decisions = dict[Pair, bool]

_on: set[Pair] = set()
# What enable() and disable() said outside of enabled(), and in its open blocks, by thread.
_outside: Decisions = {}
_blocks: defaultdict[int, list[Decisions]] = defaultdict(list)
_lock = threading.Lock()


@dataclass(frozen=True)
class Served:
    """One operator on one kind of device: whether it is taken over, and the calls served so far.

    enabled  False too where somebody else has since registered a kernel over one of ours
    calls    by name of the ATen operator, since the process began
    """

    op: str
    device: str
    enabled: bool
    calls: dict[str, int]


@dataclass(frozen=True)
class Left:
    """What ATen's own kernels run after enable(), and why.

    calls  which calls of the operator there: "all", a kind of them, or when
    """

    op: str
    device: str
    calls: str
    why: str

    def __str__(self) -> str:
        return f"left to ATen: {self.op} on {self.device}, {self.calls}: {self.why}"


@dataclass(frozen=True)
class Status:
    """What fuseline.status() returns; str() of it is a table.

    overridden  ATen's operators that others have kernels for, torch's own registry among them: what
                runs there is neither ATen's nor ours
    """

    served: tuple[Served, ...]
    left: tuple[Left, ...] = ()
    overridden: tuple[Override, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"{s.op} on {s.device}: {'enabled' if s.enabled else 'disabled'}; "
            + ", ".join(f"{count} calls of aten::{name}" for name, count in s.calls.items())
            for s in self.served
        ]
        lines += [*map(str, self.left), *map(_said, self.overridden)]
        return "\n".join([*lines, f"({NOTE} is served)"])


def _said(override: Override) -> str:
    what = (
        "registered after enable(), it serves the calls; enable() again puts ours over it"
        if override.above
        else "it serves what fuseline does not, and is what the lab measures as `native`"
    )
    return f"aten::{override.name} on {override.device} is {override.by}'s kernel: {what}"


def enable(ops: Iterable[str] | None = None) -> None:
    """Have eager calls of torch's own operators run on fuseline's kernels, in the whole process.

    ops  names of operators; None: all that fuseline can take over and that is no slower for it.
         Forward and backward of
           "rms_norm"     F.rms_norm, torch.nn.RMSNorm;
           "layer_norm"   F.layer_norm, torch.nn.LayerNorm; on a CPU if named: more precise than
                          ATen's, and slower;
           "softmax"      F.softmax, attention that computes it;
           "log_softmax"  F.log_softmax, F.cross_entropy;
           "gelu"         F.gelu(approximate="tanh"), on a CPU if named, where x has no gaps: it
                          is slower for few elements, all other calls of F.gelu by 1 to 3 us.

    Calls that these kernels do not serve give ATen's own result and are not counted in status(),
    which says what is left to ATen and why.
    Autograd stays ATen's, so do CUDA graphs, autocast and double backward. What is enabled already
    stays so; where others have registered kernels over these since, these come on top again. Not to
    be called while other threads run these operators. Compiled code is not changed: torch.compile
    takes the operators apart before kernels are looked up.
    Raises ValueError (a name), RuntimeError (this torch has another operator of that name, or the
    binary has no kernels that run here) before anything is changed.
    """
    pairs = _enabled_by(ops)
    with _lock:
        _innermost().update(dict.fromkeys(pairs, True))
        _switch()


def disable(ops: Iterable[str] | None = None) -> None:
    """Give torch's own kernels back; a backward pass of a forward before it still works.

    ops  as in enable(). An operator for which another thread is in an enabled() block stays on
         until that block ends. Raises ValueError (a name).
    """
    wanted = _names(ops)
    with _lock:
        pairs = [pair for pair in {*_on, *_outside} if pair[0] in wanted]
        _innermost().update(dict.fromkeys(pairs, False))
        _switch()


@contextmanager
def enabled(ops: Iterable[str] | None = None) -> Iterator[None]:
    """Run enable(ops) for the length of a `with` block; what it enabled or disabled ends with it.

    Blocks may overlap (threads, generators) and end in any order: an operator stays enabled while
    one of them needs it.
    """
    block = dict.fromkeys(_enabled_by(ops), True)
    thread = threading.get_ident()
    with _lock:
        _blocks[thread].append(block)
        _switch()
    try:
        yield
    finally:
        with _lock:
            # By identity: another block may have said the same.
            left = [other for other in _blocks.pop(thread) if other is not block]
            if left:
                _blocks[thread] = left
            _switch()


def status() -> Status:
    """Return what is taken over now, how many calls it has served, and what is left to ATen."""
    return Status(
        tuple(
            Served(
                op,
                device,
                (op, device) in _on and not _hidden(op, device),
                {name: calls for name in operators if (calls := _served(op, device, name)) >= 0},
            )
            for op, operators in TAKEOVERS.items()
            for device in _devices(op)
        ),
        tuple(left for op in TAKEOVERS for device in _built() for left in _left(op, device)),
        tuple(o for op in TAKEOVERS for device in _built() for o in _overrides(op, device)),
    )


def _overrides(op: str, device: str) -> list[Override]:
    """Return what others have registered over the ATen operators that `op` stands in for."""
    return [o for name in TAKEOVERS[op] if (o := overrides.find(name, device))]


def _hidden(op: str, device: str) -> list[Override]:
    """Return what others have registered over our kernels."""
    return [o for o in _overrides(op, device) if o.above]


def _left(op: str, device: str) -> Iterator[Left]:
    """Yield what enable() leaves to ATen of an operator on a kind of device."""
    if device not in _devices(op):
        why = native.status().why_not(device)
        yield Left(op, device, "all calls", why or "fuseline has no kernel in its place")
        return
    if why := BY_NAME.get((op, device)):
        yield Left(op, device, "unless it is named", why)
    if calls := HANDED_ON.get(op):
        yield Left(op, device, calls, "no kernel of ours; to hand a call on takes 1 to 3 us")


def _served(op: str, device: str, name: str) -> int:
    """Return the calls served so far; -1 if the binary has nothing that would serve them."""
    handle = native.status().handle
    words = (op, KEYS[device], name)
    return int(handle.fuseline_served(*(word.encode() for word in words))) if handle else -1


def _names(ops: Iterable[str] | None) -> list[str]:
    names = list(TAKEOVERS) if ops is None else [ops] if isinstance(ops, str) else list(ops)
    for name in names:
        if name not in TAKEOVERS:
            have = ", ".join(TAKEOVERS)
            raise ValueError(f"ops: got {name!r}, expected names among: {have}")
    return names


def _devices(op: str) -> tuple[str, ...]:
    """Return the kinds of device that torch has kernels for and the binary ones that serve `op`."""
    (name, *_) = TAKEOVERS[op]
    has = native.status().has
    return tuple(d for d in _built() if has(d) and _served(op, d, name) >= 0)


def _built() -> tuple[str, ...]:
    """Return the kinds of device that torch has kernels for."""
    return tuple(d for d in KEYS if d == "cpu" or torch.backends.cuda.is_built())


def _check(op: str) -> None:
    if not _devices(op):
        why = native.status().why_not("cpu")
        raise RuntimeError(f"fuseline cannot take over {op}: {why}")
    for name, schema in TAKEOVERS[op].items():
        packet = getattr(torch.ops.aten, name, None)
        found = str(packet.default._schema) if packet else "no such operator"
        if found != schema:
            raise RuntimeError(
                f"fuseline cannot take over {op} in torch {torch.__version__}: "
                f"found {found}, expected {schema}"
            )


def _enabled_by(ops: Iterable[str] | None) -> set[Pair]:
    """Return what enable(ops) turns on; raises as it does."""
    wanted = _names(ops)
    for op in wanted:
        _check(op)
    pairs = {(op, device) for op in wanted for device in _devices(op)}
    return pairs if ops is not None else pairs - BY_NAME.keys()


def _innermost() -> Decisions:
    """Return where a decision of this thread belongs: its innermost open block, or the process."""
    blocks = _blocks.get(threading.get_ident())
    return blocks[-1] if blocks else _outside


def _wanted() -> dict[Pair, bool]:
    """Return what is to be on: what an open block needs, else as outside of all blocks."""
    threads = [ChainMap(*reversed(blocks)) for blocks in _blocks.values()]
    pairs = {*_outside, *_on}.union(*threads)
    said = {pair: [thread[pair] for thread in threads if pair in thread] for pair in pairs}
    return {pair: any(said[pair] or [_outside.get(pair, False)]) for pair in pairs}


def _switch() -> None:
    for pair, on in sorted(_wanted().items()):
        hidden = _hidden(*pair) if pair in _on else []
        if on == (pair in _on) and not (on and hidden):
            continue
        if hidden:
            _register(pair, False)
            overrides.register_again(hidden)
        if on or not hidden:
            _register(pair, on)
        (_on.add if on else _on.discard)(pair)


def _register(pair: Pair, on: bool) -> None:
    # Said once in a process, about the operators that were named.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=f"(?s).*{OVERRIDDEN}")
        _HeardByPython.call(pair[0], KEYS[pair[1]], on)


class _HeardByPython(torch.autograd.Function):
    """The operator that takes over, in a call whose warnings in C++ become those of Python.

    A call through torch.ops alone writes them to the process's stderr.
    """

    @staticmethod
    def forward(ctx: Any, op: str, key: str, on: bool) -> None:
        torch.ops.fuseline._take_over(op, key, on)

    @classmethod
    def call(cls, op: str, key: str, on: bool) -> None:
        # No mode of the caller's sees it, and no transform of torch.func takes it apart, as the
        # Python half of apply() would.
        with torch._C._DisableTorchDispatch(), enable_single_level_autograd_function():
            super(torch.autograd.Function, cls).apply(op, key, on)  # type: ignore[misc]
