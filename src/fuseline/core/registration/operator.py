"""What the Python sides of operators share: the public function, contracts, the vmap rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.nn import Parameter
from torch.overrides import handle_torch_function, has_torch_function

from fuseline.core import host
from fuseline.core.inputs import arguments, boundary
from fuseline.core.inputs.batching import move_batch_dim_to_front, unbatched
from fuseline.core.registration import aten, contract
from fuseline.core.selection.rules import DTYPE, Fact
from fuseline.core.selection.select import Selector

# Tensors that operators take as they are; what other subclasses make of a call is their own.
PLAIN = frozenset((Tensor, Parameter, FakeTensor, FunctionalTensor))


_autocasts_any = torch._C._is_any_autocast_enabled


def call(*given: Any) -> Any:
    """Run an implementation: given are selector, validate, public, impl, then the arguments.

    The first of these is a tensor, public(*args, impl=impl) was called, and validate(*args)
    refuses what no implementation takes.
    """
    # All in one tuple, which Python hands on as it is.
    return _traced(*given) if is_dynamo_compiling() else _eager(*given)


def _traced(
    selector: Selector,
    validate: Callable[..., object],
    public: Callable[..., Any],
    impl: str,
    *args: Any,
) -> Any:
    return selector.traced(impl, args[0].device.type)(*admitted(validate, *args))


def _in_python(
    selector: Selector,
    validate: Callable[..., object],
    public: Callable[..., Any],
    impl: str,
    *args: Any,
) -> Any:
    """Do what call() does where Dynamo does not look on."""
    if is_compiling():  # torch.export without Dynamo
        return _traced(selector, validate, public, impl, *args)
    x = args[0]
    try:
        # Two attributes cost a fifth of `x.device.type`.
        device_type = "cuda" if x.is_cuda else "cpu" if x.is_cpu else x.device.type
        return selector.calls[impl, device_type](*args)
    except Exception:
        rerun, refuse = partial(call, selector, validate, public, impl), partial(validate, *args)
        return retry(rerun, refuse, public, args, impl=impl)


_eager = host.enter(_in_python)


def below(selector: Selector, impl: str, x: Tensor) -> Callable[..., Any]:
    """Return what runs `impl` on tensors on x's device that nothing looks on at and that need no
    gradient, for who made sure of that by `variant.guarded`.
    """
    run = selector.calls[impl, "cuda" if x.is_cuda else "cpu" if x.is_cpu else x.device.type]
    return getattr(run, "eager", run)


def retry(
    rerun: Callable[..., Any],
    refuse: Callable[[], object],
    public: Callable[..., Any],
    args: tuple[Any, ...],
    **options: Any,
) -> Any:
    """Return what a call that raised gives to a tracer, to autocast or to a tensor subclass.

    public(*args, **options) was called. Else raise: refuse() names the argument, for which a good
    call pays nothing. rerun(*args) is called where autocast gave the tensors one dtype.
    """
    if has_proxy(*args):
        return handle_torch_function(public, args, *args, **options)
    if any(map(boundary.met, args)):  # in inference mode, past where operators look at arguments
        return rerun(*args)
    cast = promoted(args)
    if cast is not None:
        return rerun(*cast)
    refuse()
    if has_torch_function(args):
        return handle_torch_function(public, args, *args, **options)
    raise


def has_proxy(*args: Any) -> bool:
    """Whether something among the arguments stands for a tensor and is none, as in torch.fx."""
    # Most calls have nothing at all that torch would ask, which it says in a tenth of the time.
    return has_torch_function(args) and any(
        not isinstance(a, Tensor) and has_torch_function((a,)) for a in args
    )


def promoted(args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return args with floating tensors in their common dtype, where autocast is on; else None.

    So do torch's elementwise operators under autocast. None also where all have one dtype.
    """
    floats = [a for a in args if isinstance(a, Tensor) and a.is_floating_point()]
    if len({t.dtype for t in floats}) < 2 or not autocasts(floats[0].device.type):
        return None
    wide = reduce(torch.promote_types, [t.dtype for t in floats])
    return tuple(a.to(wide) if isinstance(a, Tensor) and a.is_floating_point() else a for a in args)


def autocasts(device_type: str) -> bool:
    """Whether autocast is on for a kind of device."""
    return device_type in ("cuda", "cpu") and torch.is_autocast_enabled(device_type)


def lowered(*args: Any) -> tuple[Any, ...]:
    """Return args as torch's products take them: under autocast floating tensors in its dtype, but
    those of float64.
    """
    dtype = lowering(args[0])
    if dtype is None:
        return args
    return tuple(a.to(dtype) if _is_lowered(a) else a for a in args)


def lowering(x: Any) -> torch.dtype | None:
    """Return the dtype that autocast gives products with x, None where it is off."""
    # Not asked of a compiler: older Dynamos may not trace it.
    if not isinstance(x, Tensor) or not (is_compiling() or _autocasts_any()):
        return None
    if not autocasts(x.device.type):
        return None
    return torch.get_autocast_dtype(x.device.type)


def _is_lowered(a: Any) -> bool:
    return isinstance(a, Tensor) and a.is_floating_point() and a.dtype != torch.float64


def admitted(validate: Callable[..., object], *args: Any) -> tuple[Any, ...]:
    """Return args that validate does not refuse: as they are or, under autocast, promoted."""
    try:
        validate(*args)
    except TypeError:
        cast = promoted(args)
        if cast is None:
            raise
        validate(*cast)
        return cast
    return args


def saving_output(
    name: str,
    validate: Callable[[Tensor, int], None],
    decomposed: Callable[[Tensor, int], Tensor],
    gradient: Callable[[Tensor, Tensor, int], Tensor],
) -> contract.Contract:
    """Return the contract of an operator along one dimension of x that saves its output y alone.

    gradient(dy, y, dim) is the formula of dx in differentiable torch operations.
    """

    def fake(x: Tensor, dim: int) -> Tensor:
        validate(x, dim)
        return x.new_empty(x.shape)

    def fake_bwd(dy: Tensor, y: Tensor, dim: int) -> Tensor:
        arguments.require_along(name, dim, y, "y")
        arguments.require_exactly(name, "dy", dy, y.shape, y.dtype, y.device)
        return y.new_empty(y.shape)

    return contract.Contract(
        name=name,
        args="Tensor x, int dim",
        bwd_args="Tensor dy, Tensor y, int dim",
        bwd_returns="Tensor",
        fake=fake,
        fake_bwd=fake_bwd,
        decomposed=decomposed,
        gradient=contract.Gradient(("y",), ("x",), formula=gradient),
        vmap=vmap_over_rows(validate, along=True),
        facts=facts_along(lambda x, dim: dim),
    )


def facts_along(dim_of: Callable[..., int]) -> dict[str, Fact]:
    """Return what rules may ask of an operator along dim_of(*args), a dimension of x, its first
    argument.

    A row's result must not depend on how many there are, nor on where they lie.
    """

    def columns(x: Tensor, *args: Any) -> int:
        return x.shape[dim_of(x, *args)]

    def rows(x: Tensor, *args: Any) -> int:
        return x.numel() // max(columns(x, *args), 1)

    return {
        DTYPE: Fact(lambda x, *args: x.dtype),
        "columns": Fact(columns, tuple(1 << k for k in range(4, 19, 2))),
        "rows": Fact(rows, tuple(1 << k for k in range(2, 19, 4)), promised=True),
        "dense": Fact(lambda x, *args: x.is_contiguous(), promised=True),
    }


def aten_along(
    schemas: Mapping[str, str],
    validate: Callable[[Tensor, int], None],
    unsupported: Callable[[str, Tensor, int], str | None] | None = None,
) -> contract.Provider:
    """Return torch's own kernels behind an operator of saving_output()."""
    forward, backward = aten.bind(schemas)

    def run(x: Tensor, dim: int) -> Tensor:
        validate(x, dim)
        y: Tensor = forward(x, dim, False)
        return y.contiguous()

    def bwd(dy: Tensor, y: Tensor, dim: int) -> Tensor:
        dx: Tensor = backward(dy, y, dim, y.dtype)
        return dx.contiguous()

    return aten.provider(contract.Kernels(run, bwd=bwd), (forward, backward), unsupported)


@dataclass(frozen=True)
class SavingInput:
    """An operator on one x that saves x and, of what its forward computes, the results `saved`.

    sizes(x)    name -> shape and dtype of each output and of each result that is saved
    decomposed  the formula in torch operations that autograd, vmap and jvp can take apart
    along       whether it works along a dimension `dim`, the last argument of all these
    keeps       whether what has x's shape has x's memory layout, as torch.empty_like, the gradient
                included; all else is contiguous
    """

    name: str
    validate: Callable[..., None]
    sizes: Callable[..., dict[str, tuple[torch.Size, torch.dtype]]]
    decomposed: Callable[..., Any]
    outputs: tuple[str, ...] = ("y",)
    saved: tuple[str, ...] = ()
    along: bool = False
    keeps: bool = False

    def contract(self) -> contract.Contract:
        grads = [f"d{output}" for output in self.outputs]
        dim = ", int dim" if self.along else ""
        return contract.Contract(
            name=self.name,
            args=f"Tensor x{dim}",
            returns=_tensors(self.outputs),
            fwd_returns=_tensors(self._results) if self.saved else "",
            bwd_args=", ".join(f"Tensor {name}" for name in (*grads, "x", *self.saved)) + dim,
            bwd_returns="Tensor",
            fake=partial(self._empty, self.outputs),
            fake_fwd=partial(self._empty, self._results) if self.saved else None,
            fake_bwd=self._fake_bwd,
            decomposed=self.decomposed,
            gradient=contract.Gradient(self._results, ("x",), outputs=len(self.outputs)),
            vmap=vmap_over_rows(self.validate, self.along),
        )

    def validate_bwd(self, *args: Any) -> None:
        """Refuse what no backward takes: the outputs' gradients, x, what was saved, and dim."""
        count = len(self.outputs)
        end = count + 1 + len(self.saved)
        dys, x, saved, dim = args[:count], args[count], args[count + 1 : end], args[end:]
        self.validate(x, *dim)
        sizes = self.sizes(x, *dim)
        for name, dy in zip(self.outputs, dys, strict=True):
            arguments.require_exactly(self.name, f"d{name}", dy, *sizes[name], x.device)
        for name, t in zip(self.saved, saved, strict=True):
            arguments.require_exactly(self.name, name, t, *sizes[name], x.device)

    @property
    def _results(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.outputs, *self.saved)))

    def _empty(self, names: tuple[str, ...], x: Tensor, *dim: int) -> Any:
        self.validate(x, *dim)
        sizes = self.sizes(x, *dim)
        made = tuple(self._place(x, *sizes[n]) for n in names)
        return made if len(made) > 1 else made[0]

    def _place(self, x: Tensor, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        if self.keeps and len(shape) == x.dim():
            return torch.empty_like(x)
        return x.new_empty(shape, dtype=dtype)

    def _fake_bwd(self, *args: Any) -> Tensor:
        self.validate_bwd(*args)
        x: Tensor = args[len(self.outputs)]
        return self._place(x, x.shape, x.dtype)


def _tensors(names: tuple[str, ...]) -> str:
    """Return the schema's type of as many tensors."""
    return f"({', '.join(['Tensor'] * len(names))})" if len(names) > 1 else "Tensor"


def vmap_over_rows(validate: Callable[..., None], along: bool = False) -> Callable[..., Any]:
    """Return the vmap rule of an operator whose tensors all have leading dimensions that are rows.

    along: its last argument is a dimension, which is one further with the batch in front.
    """

    def of(op: Callable[..., Any]) -> Callable[..., Any]:
        def rule(info: Any, in_dims: Any, *args: Any) -> Any:
            def each(change: Callable[..., Any], *more: Any) -> list[Any]:
                pairs = zip(args, in_dims, strict=True)
                return [change(a, dim, *more) if isinstance(a, Tensor) else a for a, dim in pairs]

            if info.batch_size:
                validate(*each(unbatched))
            batched = each(move_batch_dim_to_front, info.batch_size)
            if along and batched[-1] >= 0:
                batched[-1] += 1
            out = op(*batched)
            return out, (0,) * len(out) if isinstance(out, tuple) else 0

        return rule

    return of
