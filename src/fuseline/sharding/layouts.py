"""What the dimensions of each operator's tensors are, and which of them may be sharded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Given = Mapping[str, Any]


@dataclass(frozen=True)
class Layout:
    """The dimensions of an operator's tensors by letters, as in einsum.

    dims       name -> letters; "*" is any number of leading dimensions, which are the same wherever
               it stands. "?" before them: some of the first may be missing, and one of one element
               stands for all. "-": without the dimension `along`. A gradient without letters has
               those of what it is of; what else has none is the same everywhere.
    outputs    names of the results, then of what the forward saves
    gradients  of which arguments the backward returns the gradients, in order, where the contract
               does not say it
    sharded    letters that may be sharded; a letter stands for one axis of all tensors that have it
    when       (arguments by name) -> whether anything may be sharded
    along      the argument that names a dimension of the first tensor that may not be
    last       (arguments by name) -> how many of the dimensions of "*" may not be, from the last
    even       letters that are sharded only into parts of the same size
    """

    dims: Mapping[str, str] = field(default_factory=dict)
    outputs: Sequence[str] = ()
    gradients: Sequence[str] = ()
    sharded: str = "*"
    when: Callable[[Given], bool] = lambda given: True
    along: str = ""
    last: Callable[[Given], int] = lambda given: 0
    even: str = ""

    def axes(self, name: str, given: Given) -> list[str | None]:
        """Return the axis of each dimension of a tensor, None where it is of no axis."""
        source = name if name in self.dims else name.removeprefix("d")
        letters = self.dims.get(source, "")
        leading = self._leading(given) if "*" in letters else []
        if "-" in letters:
            leading = [axis for axis in leading if axis != self._fixed(given)]
        axes = [*leading, *letters.translate(_NO_LETTERS)]
        if "?" not in letters:
            return axes
        shape = given[source].shape
        if len(shape) > len(axes):  # nothing is sharded (`when`)
            return [None] * len(shape)
        last = axes[len(axes) - len(shape) :]
        return [None if size == 1 else axis for axis, size in zip(last, shape, strict=True)]

    def free(self, given: Given) -> list[str]:
        """Return the axes that may be sharded."""
        if not self.dims or not self.when(given):
            return []
        leading = self._leading(given)
        leading = leading[: len(leading) - self.last(given)]
        fixed = self._fixed(given)
        axes = [axis for axis in leading if axis != fixed] if "*" in self.sharded else []
        axes += self.sharded.translate(_NO_LETTERS)
        return [axis for axis in axes if axis not in self.even or self._is_even(axis, given)]

    def _leading(self, given: Given) -> list[str]:
        """Return the axes of "*", as many as a tensor that is there has."""
        for name, letters in self.dims.items():
            if "*" in letters and not {"-", "?"} & {*letters} and given.get(name) is not None:
                return [f"*{i}" for i in range(given[name].ndim - len(letters.split()) + 1)]
        return []

    def _fixed(self, given: Given) -> str:
        leading = self._leading(given)
        return leading[given[self.along]] if self.along and leading else ""

    def _is_even(self, axis: str, given: Given) -> bool:
        """Whether all tensors are cut into parts of one size by any dimension of their mesh."""
        for name in self.dims:
            if (spec := given.get(name)) is not None and axis in (mine := self.axes(name, given)):
                size, mesh = spec.shape[mine.index(axis)], spec.mesh
                if any(size % mesh.size(i) for i in range(mesh.ndim)):
                    return False
        return True


_NO_LETTERS = str.maketrans("", "", "*-? ")


REPLICATED = Layout()
_ROWS = {"x": "* n", "y": "* n", "dy": "* n"}
_ALL = {"x": "*", "y": "*", "dy": "*"}
_ALONG = Layout(_ALL, ("y",), along="dim")
_GATED = Layout(
    {"a": "*", "b": "*", "y": "*", "dy": "*"},
    ("y",),
    # Both halves of one tensor lie in its last dimension.
    last=lambda given: given.get("b") is None,
)
_PRODUCT = Layout(
    {"a": "* k", "b": "k n", "bias": "n", "y": "* n", "h": "* n", "dy": "* n"},
    ("y", "h"),
    ("a", "b", "bias"),
    sharded="* n",
    when=lambda given: given["b"].ndim == 2,
)
_CONVOLUTION = Layout(
    {"x": "b c i j", "weight": "k c r s", "bias": "k"} | dict.fromkeys(("y", "z", "dy"), "b k p q"),
    ("y",),
    ("x", "weight", "bias", "z"),
    sharded="b",
)
# Operators that are not here run on whole tensors: what they compute needs all of them (batch
# statistics, packed sequences, a mean over all rows), or nobody has said how it could be parted.
LAYOUTS = {
    "rms_norm": Layout(_ROWS | {"weight": "n", "rstd": "*"}, ("y", "rstd")),
    "add_rms_norm": Layout(
        {"weight": "n", "rstd": "*"}
        | dict.fromkeys(("x", "residual", "y", "new_residual", "dy", "d_new_residual"), "* n"),
        ("y", "new_residual", "rstd"),
    ),
    "layer_norm": Layout(
        _ROWS | {"weight": "n", "bias": "n", "mean": "*", "rstd": "*"},
        ("y", "mean", "rstd"),
    ),
    "rms_norm_fp8": Layout(_ROWS | {"weight": "n"}, ("y",)),
    "rms_norm_fp8_dynamic": Layout(_ROWS | {"weight": "n", "scale": "* k"}, ("y", "scale")),
    "add_rms_norm_fp8_dynamic": Layout(
        {"weight": "n", "scale": "* k"}
        | dict.fromkeys(("x", "residual", "y", "new_residual"), "* n"),
        ("y", "scale", "new_residual"),
    ),
    "layer_norm_fp8": Layout(_ROWS | {"weight": "n", "bias": "n"}, ("y",)),
    "layer_norm_fp8_dynamic": Layout(
        _ROWS | {"weight": "n", "bias": "n", "scale": "* k"}, ("y", "scale")
    ),
    "softmax": _ALONG,
    "log_softmax": _ALONG,
    "double_softmax": Layout(_ALL | {"stats": "* - s"}, ("y", "stats"), along="dim"),
    "softmax_backward": Layout(
        dict.fromkeys(("dy", "y", "ddx", "dx", "ddy", "d_y"), "*"),
        ("dx",),
        ("dy", "_y"),
        along="dim",
    ),
    "masked_softmax": Layout(
        _ROWS | {"mask": "? * n"},
        ("y",),
        ("x",),
        last=lambda given: bool(given["causal"]),  # what is hidden depends on the row
    ),
    "norm_chain": Layout(_ROWS | {"sum": "*"}, ("y", "sum")),
    "pointwise_chain": Layout(_ALL, ("y",)),
    "horizontal_reduction_pointwise": Layout(
        {"x": "* n", "sum": "*", "cos": "* n"}, ("sum", "cos")
    ),
    "horizontal_reduction_reduction": Layout(
        {"x": "* n", "sum": "*", "amax": "*", "count": "*"}, ("sum", "amax", "count")
    ),
    "bias_gelu": Layout(_ROWS | {"bias": "n"}, ("y",), sharded="* n"),
    "bias_dropout_add": Layout(
        _ROWS | {"residual": "* n", "bias": "? * n"},
        ("y",),
        ("x",),
        sharded="* n",
        # What is dropped is drawn by the place in the whole tensor.
        when=lambda given: given.get("training") is False or given["p"] == 0.0,
    ),
    "swiglu": _GATED,
    "geglu": _GATED,
    "rope": Layout(
        dict.fromkeys(("q", "k", "dq", "dk"), "b h t d") | dict.fromkeys(("cos", "sin"), "? b t p"),
        ("q", "k"),
        ("q", "k"),
        sharded="b h t",
        when=lambda given: given["cos"].ndim < 4,
    ),
    "matmul_add": _PRODUCT,
    "matmul_relu": replace(_PRODUCT, gradients=("a", "b")),
    "matmul_add_relu": _PRODUCT,
    "matmul_add_gelu": _PRODUCT,
    "conv_add": _CONVOLUTION,
    "conv_relu": _CONVOLUTION,
    "conv_add_relu": _CONVOLUTION,
    "attention": Layout(
        dict.fromkeys(("q", "out", "dout"), "b h t d")
        | dict.fromkeys(("k", "v"), "b h s d")
        | {"lse": "b h t", "mask": "? b h t s"},
        ("out", "lse"),
        ("q", "k", "v", "mask"),
        sharded="b h",
        when=lambda given: given["dropout"] == 0.0,
        even="h",  # so that queries keep the keys that they share
    ),
}
