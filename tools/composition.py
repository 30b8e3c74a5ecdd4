"""Operators under torch's transforms: docs/composition.md, computed by running each pair on a CPU.

    python tools/composition.py            print the page
    python tools/composition.py --write    write it

A cell says "right" where the operator gives what its eager formula gives under the same transform,
"error" where it raises an error that names the operator, and "torch" where the formula raises, too.
Anything else is a fault, and the page cannot be written.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.checkpoint import checkpoint

import fuseline
from fuseline import table
from fuseline.core.specs.spec import Case, Inputs, OpSpec
from fuseline.testing.oracle.accuracy import gradient_names

PAGE = Path(__file__).parents[1] / "docs" / "composition.md"
RIGHT, ERROR, TORCH = "right", "error", "torch"
HEAD = """# Operators under torch's transforms

Every public operator under every transform, on a CPU, forward and, where it says so, backward.
**right**: what the operator's eager formula gives under the same transform. **error**: an error
that names the operator; the numbers lead to its words. **torch**: the formula, in plain torch
operations, raises there as well. Empty: the operator has no gradient.

Computed by running each pair: `python tools/composition.py --write`.
`tests/lab/test_composition.py` runs them again and compares.
"""

Fn = Callable[..., Any]


@dataclass(frozen=True)
class Trial:
    """An operator's small problem; `names` are the inputs with gradients."""

    spec: OpSpec
    inputs: Inputs
    names: tuple[str, ...]

    def leaves(self) -> Inputs:
        fresh = {n: self.inputs[n].clone().requires_grad_() for n in self.names}
        return {**self.inputs, **fresh}

    def tensors(self) -> dict[str, Tensor]:
        return {n: v for n, v in self.inputs.items() if isinstance(v, Tensor)}


class _Module(torch.nn.Module):
    def __init__(self, fn: Fn, fixed: Inputs) -> None:
        super().__init__()
        self.fn, self.fixed = fn, fixed

    def forward(self, tensors: dict[str, Tensor]) -> Any:
        return self.fn(**tensors, **self.fixed)


class _Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Function(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Tagged(Tensor):
    """A subclass with torch's own __torch_function__."""


def _floats(out: Any) -> list[Tensor]:
    return [t for t in tree_leaves(out) if isinstance(t, Tensor) and t.requires_grad]


def _loss(out: Any) -> Tensor:
    return sum((y.float().sin().sum() for y in _floats(out)), torch.zeros(()))


def _backward(fn: Fn, trial: Trial) -> Any:
    leaves = trial.leaves()
    out = fn(**leaves)
    return out, torch.autograd.grad(_loss(out), [leaves[n] for n in trial.names])


def _double_backward(fn: Fn, trial: Trial) -> Any:
    leaves = trial.leaves()
    wanted = [leaves[n] for n in trial.names]
    grads = torch.autograd.grad(_loss(fn(**leaves)), wanted, create_graph=True)
    return torch.autograd.grad(_loss(grads), wanted, allow_unused=True)


def _of_first(fn: Fn, trial: Trial) -> tuple[Callable[[Tensor], Any], Tensor]:
    """Return the operator as a function of its first input with a gradient."""
    name = trial.names[0]
    rest = {n: v for n, v in trial.inputs.items() if n != name}
    return lambda x: fn(**{name: x}, **rest), trial.inputs[name]


def _sum_of_first(fn: Fn, trial: Trial) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    one, x = _of_first(fn, trial)
    return lambda x: sum((y.float().sin().sum() for y in tree_leaves(one(x))), torch.zeros(())), x


def _jvp(fn: Fn, trial: Trial) -> Any:
    one, x = _of_first(fn, trial)
    return torch.func.jvp(one, (x,), (x.cos(),))


def _vjp(fn: Fn, trial: Trial) -> Any:
    one, x = _of_first(fn, trial)
    out, pull = torch.func.vjp(one, x)
    return out, pull(tree_map(lambda y: y.float().cos().to(y.dtype), out))


def _grad(fn: Fn, trial: Trial) -> Any:
    one, x = _sum_of_first(fn, trial)
    return torch.func.grad(one)(x)


def _vmap(fn: Fn, trial: Trial) -> Any:
    one, x = _of_first(fn, trial)
    return torch.vmap(one)(torch.stack([x, x.flip(0), 2 * x]))


def _vmap_of_grad(fn: Fn, trial: Trial) -> Any:
    one, x = _sum_of_first(fn, trial)
    return torch.vmap(torch.func.grad(one))(torch.stack([x, x.flip(0), 2 * x]))


def _functionalize(fn: Fn, trial: Trial) -> Any:
    one, x = _of_first(fn, trial)
    return torch.func.functionalize(one)(x)


def _make_fx(fn: Fn, trial: Trial) -> Any:
    one, x = _of_first(fn, trial)
    return make_fx(one)(x)(x)


def _module(fn: Fn, trial: Trial) -> tuple[_Module, dict[str, Tensor]]:
    given = trial.tensors()
    return _Module(fn, {n: v for n, v in trial.inputs.items() if n not in given}), given


def _export(fn: Fn, trial: Trial) -> Any:
    module, given = _module(fn, trial)
    return torch.export.export(module, (given,)).module()(given)


def _compiled(dynamic: bool) -> Callable[[Fn, Trial], Any]:
    def run(fn: Fn, trial: Trial) -> Any:
        torch._dynamo.reset()
        made = torch.compile(fn, backend="aot_eager", fullgraph=True, dynamic=dynamic)
        return _backward(made, trial) if trial.names else made(**trial.inputs)

    return run


def _symbolic_trace(fn: Fn, trial: Trial) -> Any:
    one, x = _of_first(fn, trial)
    return torch.fx.symbolic_trace(one)(x)


def _jit_trace(fn: Fn, trial: Trial) -> Any:
    one, x = _of_first(fn, trial)
    return torch.jit.trace(one, x, check_trace=False)(x)


def _checkpoint(fn: Fn, trial: Trial) -> Any:
    return _backward(lambda **kw: checkpoint(fn, use_reentrant=False, **kw), trial)


def _hooks(fn: Fn, trial: Trial) -> Any:
    leaves = trial.leaves()
    for n in trial.names:
        leaves[n].register_hook(lambda g: 2 * g)
    out = fn(**leaves)
    for y in _floats(out):
        y.register_hook(lambda g: g + 1)
    return torch.autograd.grad(_loss(out), [leaves[n] for n in trial.names])


def _saved_hooks(fn: Fn, trial: Trial) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.numpy(), torch.from_numpy):
        return _backward(fn, trial)


def _fake(fn: Fn, trial: Trial) -> Any:
    with FakeTensorMode() as mode:
        given = {n: mode.from_tensor(v) if isinstance(v, Tensor) else v
                 for n, v in trial.inputs.items()}  # fmt: skip
        return [(y.shape, y.dtype, y.stride()) for y in tree_leaves(fn(**given))]


def _meta(fn: Fn, trial: Trial) -> Any:
    given = {n: v.to("meta") if isinstance(v, Tensor) else v for n, v in trial.inputs.items()}
    return [(y.shape, y.dtype, y.stride()) for y in tree_leaves(fn(**given))]


def _subclass(fn: Fn, trial: Trial) -> Any:
    one, x = _of_first(fn, trial)
    return tree_map(lambda y: y.as_subclass(Tensor), one(x.as_subclass(Tagged)))


def _nested(fn: Fn, trial: Trial) -> Any:
    one, x = _of_first(fn, trial)
    return one(torch.nested.nested_tensor([x, x], layout=torch.jagged)).unbind()


def _threads(fn: Fn, trial: Trial) -> Any:
    found: list[Any] = [None] * 4

    def work(i: int) -> None:
        found[i] = _backward(fn, trial) if trial.names else fn(**trial.inputs)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _under(context: Callable[[], Any], backward: bool = True) -> Callable[[Fn, Trial], Any]:
    def run(fn: Fn, trial: Trial) -> Any:
        with context():
            return _backward(fn, trial) if backward and trial.names else fn(**trial.inputs)

    return run


class _Deterministic:
    def __enter__(self) -> None:
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *_: object) -> None:
        torch.use_deterministic_algorithms(False)


QUICK: dict[str, Callable[[Fn, Trial], Any]] = {
    "backward": _backward,
    "double backward": _double_backward,
    "`torch.func.jvp` (forward mode)": _jvp,
    "`torch.func.vjp`": _vjp,
    "`torch.func.grad`": _grad,
    "`torch.vmap`": _vmap,
    "`torch.vmap` of `grad`": _vmap_of_grad,
    "`torch.func.functionalize`": _functionalize,
    "`make_fx`": _make_fx,
    "`torch.fx.symbolic_trace`": _symbolic_trace,
    "`torch.jit.trace`": _jit_trace,
    "checkpoint, backward": _checkpoint,
    "gradient hooks": _hooks,
    "saved-tensor hooks, backward": _saved_hooks,
    "`TorchDispatchMode`, backward": _under(_Dispatch),
    "`TorchFunctionMode`, backward": _under(_Function),
    "`FakeTensorMode` (shapes, dtypes, strides)": _fake,
    "meta tensors (shapes, dtypes, strides)": _meta,
    "tensor subclass": _subclass,
    "jagged nested tensor": _nested,
    "`inference_mode`": _under(torch.inference_mode, backward=False),
    "CPU autocast (bf16), backward": _under(lambda: torch.autocast("cpu", torch.bfloat16)),
    "deterministic algorithms, backward": _under(_Deterministic),
    "anomaly mode, backward": _under(torch.autograd.detect_anomaly),
    "four threads, backward": _threads,
}
SLOW: dict[str, Callable[[Fn, Trial], Any]] = {
    "`torch.compile`, static, backward": _compiled(False),
    "`torch.compile`, dynamic, backward": _compiled(True),
    "`torch.export`": _export,
}
# Of operators without a gradient what says backward runs forward; these have no meaning there.
NEEDS_GRADIENT = {"backward", "double backward", "checkpoint, backward", "gradient hooks",
                  "saved-tensor hooks, backward", "`torch.func.grad`", "`torch.vmap` of `grad`",
                  "`torch.func.jvp` (forward mode)", "`torch.func.vjp`"}  # fmt: skip


def trials() -> dict[str, Trial]:
    """Return a small problem of several rows for each operator, in fp32."""
    made = {}
    for name, spec in table.load().items():
        checked = (case for case in spec.cases if "check" in case.suites)
        inputs = next(filter(_is_small, (_inputs(spec, case) for case in checked)))
        made[name] = Trial(spec, inputs, gradient_names(spec, inputs))
    return made


def _inputs(spec: OpSpec, case: Case) -> Inputs:
    generator = torch.Generator().manual_seed(5)
    return spec.make_inputs(case, torch.float32, torch.device("cpu"), generator)


def _is_small(inputs: Inputs) -> bool:
    first = next(t for t in inputs.values() if isinstance(t, Tensor))
    return first.dim() > 1 and 20 < first.numel() < 2000


def outcome(transform: str, trial: Trial) -> tuple[str, str]:
    """Return (RIGHT, ERROR or TORCH, the words of an error); raise AssertionError on a fault."""
    run = (QUICK | SLOW)[transform]
    if not trial.names and transform in NEEDS_GRADIENT:
        return "", ""
    assert trial.spec.eager is not None
    right, why = _run(run, trial, trial.spec.eager.fn)
    public = getattr(fuseline, trial.spec.name)
    found, error = _run(run, trial, public)
    name = trial.spec.name
    if error is not None and why is not None:
        return TORCH, ""
    if error is not None:
        words = str(error).strip().splitlines()[0] if str(error).strip() else ""
        assert name in words, f"{name}, {transform}: {type(error).__name__}: {words}"
        return ERROR, words
    if why is not None:
        return RIGHT, ""  # where the formula cannot
    assert _same(found, right), f"{name}, {transform}: not what the formula gives"
    return RIGHT, ""


def _run(run: Callable[[Fn, Trial], Any], trial: Trial, fn: Fn) -> tuple[Any, Exception | None]:
    if not trial.names:
        first = trial.spec.row_inputs[0]
        trial = Trial(trial.spec, trial.inputs, (first,)) if _is_of_one(run) else trial
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return run(fn, trial), None
        except Exception as error:
            return None, error


# The first input in rows takes the place of the first with a gradient.
def _is_of_one(run: Callable[[Fn, Trial], Any]) -> bool:
    """Say whether a transform takes the operator as a function of one input."""
    return run in (_vmap, _functionalize, _make_fx, _symbolic_trace, _jit_trace, _subclass, _nested)


def _same(a: Any, b: Any) -> bool:
    mine, theirs = tree_leaves(a), tree_leaves(b)
    # Gradients of autocast's half types come back in the type of their leaf.
    width = min((t.element_size() for t in mine if isinstance(t, Tensor)), default=4)
    if len(mine) != len(theirs):
        return False
    return all(_close(*pair, width) for pair in zip(mine, theirs, strict=True))


def _close(a: Any, b: Any, width: int) -> bool:
    """Return whether two leaves are alike in a type of `width` bytes."""
    if not isinstance(a, Tensor):
        return bool(a == b)
    if not isinstance(b, Tensor) or a.shape != b.shape:
        return False
    x, y = a.detach().double(), b.detach().double()
    # The formula loses digits where terms cancel: norm_chain's gradient, products of half types.
    lost = 2.0**-7 if width == 2 else 1e-4
    least = lost * float(y.abs().nan_to_num().max()) if y.numel() else 0.0
    rough = 2.0**-3 if a.element_size() == 1 else 2e-2 if width == 2 else 1e-4
    return torch.allclose(x, y, rtol=rough, atol=max(least, 1e-6), equal_nan=True)


def cells(transforms: dict[str, Any]) -> Iterator[tuple[str, str, str, str]]:
    """Yield (transform, operator, outcome, words)."""
    problems = trials()
    for transform in transforms:
        for name, trial in problems.items():
            yield (transform, name, *outcome(transform, trial))


def page() -> str:
    """Return the text of docs/composition.md."""
    operators = list(table.load())
    words: dict[str, int] = {}
    rows: dict[str, list[str]] = {transform: [] for transform in QUICK | SLOW}
    for transform, _, found, said in cells(QUICK | SLOW):
        mark = f"error {words.setdefault(said, len(words) + 1)}" if found == ERROR else found
        rows[transform].append(mark)
    lines = [HEAD, "| | " + " | ".join(f"`{name}`" for name in operators) + " |"]
    lines.append("|---|" + "---|" * len(operators))
    lines += [f"| {transform} | " + " | ".join(row) + " |" for transform, row in rows.items()]
    if words:
        lines += ["", "Errors:", ""]
        lines += [f"{number}. `{said}`" for said, number in words.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    text = page()
    if "--write" in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text, end="")
