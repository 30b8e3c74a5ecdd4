"""Our kernels in the place of ATen's: enable, disable, enabled, status."""

from __future__ import annotations

import os
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from fuseline.core import native
from fuseline.ops.bias_gelu.op import ATEN as GELU
from fuseline.ops.layer_norm.op import ATEN as LAYER_NORM
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
# Sums of more precision than ATen's, which take longer than ATen's.
BY_NAME = {("layer_norm", "cpu")}
KEYS = {"cpu": "CPU", "cuda": "CUDA"}
OVERRIDDEN = "Overriding a previously registered kernel"
NOTE = "torch.compile takes these operators apart before kernels are looked up: none of its calls"

_on: set[tuple[str, str]] = set()
_lock = threading.Lock()


@dataclass(frozen=True)
class Served:
    """One operator on one kind of device: whether it is taken over, and the calls served so far.

    calls  by name of the ATen operator, since the process began
    """

    op: str
    device: str
    enabled: bool
    calls: dict[str, int]


@dataclass(frozen=True)
class Status:
    """What fuseline.status() returns; str() of it is a table."""

    served: tuple[Served, ...]

    def __str__(self) -> str:
        lines = [
            f"{s.op} on {s.device}: {'enabled' if s.enabled else 'disabled'}; "
            + ", ".join(f"{count} calls of aten::{name}" for name, count in s.calls.items())
            for s in self.served
        ]
        return "\n".join([*lines, f"({NOTE} is served)"])


def enable(ops: Iterable[str] | None = None) -> None:
    """Have eager calls of torch's own operators run on fuseline's kernels, in the whole process.

    ops  names of operators; None: all that fuseline can take over and that is no slower for it.
         Forward and backward of
           "rms_norm"     F.rms_norm, torch.nn.RMSNorm;
           "layer_norm"   F.layer_norm, torch.nn.LayerNorm; on a GPU forward only, on a CPU if
                          named: more precise than ATen's, and slower;
           "softmax"      F.softmax, attention that computes it;
           "log_softmax"  F.log_softmax, F.cross_entropy;
           "gelu"         F.gelu(approximate="tanh"), on a CPU, where x has no gaps.

    Calls that these kernels do not serve give ATen's own result and are not counted in status().
    Autograd stays ATen's, so do CUDA graphs, autocast and double backward. What is enabled already
    stays so. Not to be called while other threads run these operators. Compiled code is not
    changed: torch.compile takes the operators apart before kernels are looked up.
    Raises ValueError (a name), RuntimeError (this torch has another operator of that name, or there
    is no binary) before anything is changed.
    """
    wanted = _names(ops)
    with _lock:
        for op in wanted:
            _check(op)
        pairs = {(op, device) for op in wanted for device in _devices(op)}
        _switch(sorted(pairs if ops is not None else pairs - BY_NAME), on=True)


def disable(ops: Iterable[str] | None = None) -> None:
    """Give torch's own kernels back; a backward pass of a forward before it still works.

    ops  as in enable(). Raises ValueError (a name).
    """
    wanted = _names(ops)
    with _lock:
        _switch([known for known in sorted(_on) if known[0] in wanted], on=False)


@contextmanager
def enabled(ops: Iterable[str] | None = None) -> Iterator[None]:
    """enable() inside a `with`; on the way out all is as it was on the way in."""
    before = set(_on)
    enable(ops)
    try:
        yield
    finally:
        with _lock:
            _switch(sorted(_on - before), on=False)
            _switch(sorted(before - _on), on=True)


def status() -> Status:
    """What is taken over now, and how many calls it has served."""
    return Status(
        tuple(
            Served(
                op,
                device,
                (op, device) in _on,
                {name: calls for name in operators if (calls := _served(op, device, name)) >= 0},
            )
            for op, operators in TAKEOVERS.items()
            for device in _devices(op)
        )
    )


def _served(op: str, device: str, name: str) -> int:
    """Calls served so far; -1 where the binary has nothing that would serve them."""
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
    """The kinds of device that torch has kernels for and the binary ones that serve `op`."""
    built = {"cpu": True, "cuda": torch.backends.cuda.is_built()}
    (name, *_) = TAKEOVERS[op]
    return tuple(d for d in KEYS if built[d] and _served(op, d, name) >= 0)


def _check(op: str) -> None:
    if why := native.status().why_not("cpu"):
        raise RuntimeError(f"fuseline cannot take over {op}: {why}")
    for name, schema in TAKEOVERS[op].items():
        packet = getattr(torch.ops.aten, name, None)
        found = str(packet.default._schema) if packet else "no such operator"
        if found != schema:
            raise RuntimeError(
                f"fuseline cannot take over {op} in torch {torch.__version__}: "
                f"found {found}, expected {schema}"
            )


def _switch(pairs: Iterable[tuple[str, str]], on: bool) -> None:
    for op, device in pairs:
        with _unwarned():
            torch.ops.fuseline._take_over(op, KEYS[device], on)
        (_on.add if on else _on.discard)((op, device))


@contextmanager
def _unwarned() -> Iterator[None]:
    """Keep back torch's warning that a kernel is overridden, which here is what was asked for.

    Torch 2.10 writes it to the process's stderr, from where what else came meanwhile is handed on.
    """
    with warnings.catch_warnings(), tempfile.TemporaryFile() as heard:
        warnings.filterwarnings("ignore", message=f"(?s).*{OVERRIDDEN}")
        stderr = os.dup(2)
        os.dup2(heard.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            heard.seek(0)
            said = heard.read()
            if OVERRIDDEN.encode() not in said:
                os.write(2, said)
