"""One comparison of a module with the norm: inputs that tell them apart, and the difference."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from fuseline.patching.form import Form

# Rows of a probe, as multiples of sqrt(eps): where eps matters, and where it does not. fp16 must
# hold them.
ROW_SIZES, LARGEST = (1e-3, 0.3, 1.0, 3.0, 1e2, 1e4, 1e6), 1e3
# Most that two results of one formula differ by: in eps of the dtype, of the value itself (the
# module may round twice; of a layer norm, whose terms may cancel, of |weight| + |bias| too) and of
# the largest gradient (it may sum in another order). For fp64 it is fp32's: modules compute in it.
RESULT_EPS, GRADIENT_EPS, HALF_GRADIENT_EPS = 8, 256, 16
INTERNALS = frozenset(vars(Module()))
# Of an activation, most of our error: times the module's own, and in eps of the largest element; in
# fp64 the formula beside which both stand is rounded, too. Most of the module's own, in eps.
TIMES_OWN, OF_LARGEST, OF_LARGEST_IN_FP64, OWN = 2.0, 4.0, 32.0, 64.0


class Unlike(Exception):
    """The module gives another type, shape or dtype than the norm, or raises."""


class Differs(Unlike):
    """The module gives other values than the norm, `gap` times what rounding explains."""

    def __init__(self, gap: float, when: str = "") -> None:
        super().__init__(
            f"its results differ from the norm's{when}, {gap:.3g} times what rounding explains"
        )
        self.gap = gap


class Twin:
    """A module's forward on parameters of a probe: the module itself is never written to.

    Plain containers among the attributes are copied, so what a forward notes there stays here.

    kind  the class of the twin, on which a forward may depend
    """

    def __init__(
        self, module: Any, own: type[Module], training: bool, kind: type[Module] | None = None
    ) -> None:
        self.own = own
        self.module: Any = object.__new__(kind or own)
        state = {name: copy.deepcopy(v) if is_plain(v) else v for name, v in vars(module).items()}
        state.pop("_fuseline", None)
        state["training"] = training
        vars(self.module).update(state)
        self._before = {name: copy.deepcopy(v) if is_plain(v) else v for name, v in state.items()}

    def forward(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Any:
        given = {"weight": weight, "bias": bias}
        own = self._before["_parameters"]
        vars(self.module)["_parameters"] = {name: given.get(name) for name in own}
        return self.own.forward(self.module, x)

    def written(self) -> list[str]:
        """Return the attributes that the forward has changed."""
        now = vars(self.module)
        names = (self._before.keys() | now.keys()) - {"_parameters"}
        return sorted(n for n in names if not same(self._before.get(n), now.get(n)))


def is_plain(value: Any) -> bool:
    """Whether a value has no parts that are shared with others: numbers, names, lists of them."""
    if isinstance(value, dict):
        return type(value) is dict and all(map(is_plain, (*value, *value.values())))
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(is_plain, value))
    return value is None or isinstance(
        value, (bool, int, float, complex, str, torch.dtype, torch.device)
    )


def same(a: Any, b: Any) -> bool:
    """Whether two values of an attribute are one, or plain and equal."""
    return a is b or (is_plain(a) and is_plain(b) and type(a) is type(b) and a == b)


class Probe:
    """Random x, weight, bias and gradient of one dtype for a form, from a generator of its own.

    lead     the leading dimensions of x
    extreme  rows with one element far above the rest, of zeros and with a NaN; parameters of all
             sizes: whatever bounds or replaces a result shows
    layout   returns x in other memory
    """

    def __init__(
        self,
        form: Form,
        lead: tuple[int, ...],
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        extreme: bool = False,
        layout: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        self.form, eps = form, form.eps
        generator = torch.Generator("cpu")
        generator.seed()

        def randn(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")

        least = torch.finfo(torch.float32).eps if eps is None else max(eps, 1e-12)
        x, rows = randn(*lead, *form.shape), prod(lead)
        if extreme:
            _make_extreme(
                x.view(rows, prod(form.shape)), eps, 10.0 if dtype == torch.float16 else 1e12
            )
        else:
            sizes = torch.tensor(ROW_SIZES, device="cpu", dtype=torch.float32) * least**0.5
            first = int(torch.randint(len(sizes), (), generator=generator, device="cpu"))
            sizes = sizes.clamp(max=LARGEST).roll(first).repeat(rows // len(sizes) + 1)[:rows]
            x = x * sizes.view(*lead, *[1] * len(form.shape))
        powers = 2.0 if dtype == torch.float16 else 12.0

        def parameter() -> Parameter:
            p = randn(*form.shape)
            if extreme:
                p = p * 10 ** (powers * torch.rand(p.shape, generator=generator, device="cpu"))
            return Parameter(p.to(device, dtype))

        x = x.to(device, dtype)
        self.x = x if layout is None else layout(x)
        self.dy = randn(*x.shape).to(device, dtype)
        self.weight = parameter() if form.weight else None
        self.bias = parameter() if form.bias else None

    def check(self, twin: Twin, gradients: bool = False, when: str = "") -> None:
        """Raise Differs or Unlike where the module does not give what the norm gives."""
        try:
            gap = self._gap(twin, gradients)
        except Unlike:
            raise
        except Exception as error:  # whatever its forward does
            line = (str(error).strip().splitlines() or [""])[0]
            raise Unlike(f"its forward raises {type(error).__name__} on a probe: {line}") from error
        if gap > 1:
            raise Differs(gap, when)

    def same_strides(self, twin: Twin) -> bool:
        """Whether the results of the module and of the norm have their dims in one order."""
        with torch.no_grad():
            theirs = twin.forward(self.x, self.weight, self.bias)
            ours = self.form.compute(self.x, self.weight, self.bias)
        return bool(theirs.stride() == ours.stride())

    def _gap(self, twin: Twin, gradients: bool) -> float:
        """Return the largest difference over what rounding explains."""
        x = self.x.detach().clone(memory_format=torch.preserve_format).requires_grad_(gradients)
        with torch.set_grad_enabled(gradients):
            theirs = twin.forward(x, self.weight, self.bias)
            if not isinstance(theirs, Tensor):
                raise Unlike(f"its forward returns a {type(theirs).__name__}")
            ours = self.form.compute(x, self.weight, self.bias)
        if (theirs.shape, theirs.dtype) != (ours.shape, ours.dtype):
            raise Unlike(
                f"its forward returns {theirs.dtype} of shape {tuple(theirs.shape)} for "
                f"{x.dtype} of shape {tuple(x.shape)}"
            )
        if not _identical(x, self.x):
            raise Unlike("its forward writes to its input")
        with torch.no_grad():
            gap = _over(ours, theirs, self._result_size(theirs), RESULT_EPS)
        if not gradients or not x.numel():
            return gap
        leaves = [t for t in (x, self.weight, self.bias) if t is not None]
        pair = [torch.autograd.grad(y, leaves, self.dy) for y in (ours, theirs)]
        most = HALF_GRADIENT_EPS if x.dtype.itemsize == 2 else GRADIENT_EPS
        with torch.no_grad():
            sizes = [self._dx_size(), *(b.abs().max() for b in pair[1][1:])]
            triples = zip(*pair, sizes, strict=True)
            return max(gap, *(_over(a, b, size, most) for a, b, size in triples))

    def _result_size(self, theirs: Tensor) -> Tensor:
        size = theirs.abs().double()
        if self.form.centred:
            size = size + (1.0 if self.weight is None else self.weight.abs())
            size = size if self.bias is None else size + self.bias.abs()
        return size

    def _dx_size(self) -> Tensor:
        """Return the size of the terms of dx, which may cancel: |dy * weight| * rstd."""
        dims = tuple(range(-len(self.form.shape), 0))
        x = self.x.double()
        if self.form.centred:
            x = x - x.mean(dims, True)
        eps = torch.finfo(torch.float32).eps if self.form.eps is None else self.form.eps
        dy = self.dy.double()
        if self.weight is not None:
            dy = dy * (self.weight.double() + self.form.offset)
        rstd: Tensor = torch.rsqrt(x.square().mean(dims, True) + eps)
        return dy.abs().amax(dims, True) * rstd


def transposed(x: Tensor) -> Tensor:
    return x.transpose(0, -1).contiguous().transpose(0, -1)


def sliced(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, -1)[..., ::2]


def channels_last(x: Tensor) -> Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return x.contiguous(memory_format=formats.get(x.dim(), torch.contiguous_format))


def _make_extreme(rows: Tensor, eps: float | None, large: float) -> None:
    """Write rows in turn: one element far above the rest, large ones, with a NaN, zeros."""
    rows[:, 0] *= 1e3
    rows[1::4] *= large
    rows[2::4, -1] = float("nan")
    if eps != 0:
        rows[3::4] = 0.0


def _over(a: Tensor, b: Tensor, size: Tensor, most: float) -> float:
    if not a.numel():
        return 0.0
    unit = torch.finfo(torch.float32 if a.dtype == torch.float64 else a.dtype)
    a, b = a.double(), b.double()
    gap = (a - b).abs() / (most * unit.eps * size.double() + unit.tiny)
    gap = gap.masked_fill((a == b) | (a.isnan() & b.isnan()), 0.0)
    return float(gap.nan_to_num(float("inf"), float("inf")).max())


def _identical(a: Tensor, b: Tensor) -> bool:
    return bool(((a == b) | (a.isnan() & b.isnan())).all())


def near(found: Tensor, own: Tensor, right: Tensor) -> None:
    """Raise Unlike where what was found is farther from fp64 than a module's own and rounding."""
    eps, size = torch.finfo(own.dtype).eps, float(right.nan_to_num().abs().max())
    if not torch.equal(found.isnan(), own.isnan()):
        raise Unlike("its results differ where a number is NaN")
    off = [float((t.double() - right).nan_to_num(0.0).abs().max()) for t in (found, own)]
    least = OF_LARGEST_IN_FP64 if own.dtype == torch.float64 else OF_LARGEST
    most = TIMES_OWN * off[1] + least * eps * size
    gap = max(off[0] / most, off[1] / (OWN * eps * size))
    if gap > 1:
        raise Differs(gap)


@contextmanager
def neutral(device: torch.device) -> Iterator[None]:
    """Have a probe see none of the caller's modes: inference, default device, autocast."""
    # A device's context takes a quarter of the time: each call of torch goes through it.
    cpu = torch.get_default_device().type == "cpu"
    with (
        torch.inference_mode(False),
        nullcontext() if cpu else torch.device("cpu"),
        autocast(device, None),
    ):
        yield


def autocast(device: torch.device, dtype: torch.dtype | None) -> Any:
    """Return autocast to a dtype, or its absence."""
    if dtype is None:
        return torch.autocast(device.type, enabled=False)
    return torch.autocast(device.type, dtype=dtype, cache_enabled=False)
