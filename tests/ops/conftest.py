"""Lets the tests here import their neighbours, and Triton's interpreter do as a GPU does."""

import functools
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fuseline

sys.path.insert(0, str(Path(__file__).parents[1]))


@pytest.fixture
def given_back():
    """Gives ATen's kernels back when the test has run."""
    yield
    fuseline.disable()


def _halves(v):
    """The upper and the lower 26 bits of fp64."""
    big = v * 134217729.0
    high = big - (big - v)
    return high, v - high


def _fma(x, y, z):
    """x * y + z of numpy arrays, rounded once where the product and z cancel."""
    if x.dtype != np.float64:
        product = x.astype(np.float64) * y
        total = product + z
        moved = total - product
        lost = (product - (total - moved)) + (z - moved)
        # Of the two neighbours the odd one is no tie where the exact sum is none.
        beside = np.nextafter(total, np.copysign(np.inf, lost))
        even = (total.view(np.int64) & 1 == 0) & (lost != 0) & np.isfinite(lost)
        return np.where(even, beside, total).astype(x.dtype)
    (a, b), (c, d), product = _halves(x), _halves(y), x * y
    lost = b * d - (((product - a * c) - b * c) - a * d)
    total = product + z
    moved = total - product
    exact = total + ((product - (total - moved)) + (z - moved) + lost)
    return np.where(np.isfinite(exact), exact, total)


def _brought_together(semantic):
    """How operands get one shape, and one type: two that have it are what they become."""
    broadcast, check = semantic.broadcast_impl_value, semantic.binary_op_type_checking_impl
    stay = {"int32", "int64", "fp32", "fp64"}  # narrower ones are widened for a division

    def compatible(self, lhs, rhs):
        return (lhs, rhs) if lhs.shape is rhs.shape else broadcast(self, lhs, rhs)

    def checked(self, lhs, rhs, *how, **named):
        if isinstance(lhs, self.tensor) and isinstance(rhs, self.tensor):
            name = lhs.dtype.name
            if name in stay and name == rhs.dtype.name and lhs.shape is rhs.shape:
                return lhs, rhs
        return check(self, lhs, rhs, *how, **named)

    return compatible, checked


@pytest.fixture
def quick_interpreter(monkeypatch):
    """Spares Triton's interpreter half of its time: names and types that it makes again and again.

    Nothing that it computes, and no assertion, goes with them.
    """
    from triton.language import core, semantic
    from triton.runtime import interpreter

    init_block, equal, same = core.block_type.__init__, core.tuple.__eq__, core.dtype.__eq__
    dtype_of = interpreter._get_np_dtype
    blocks, shapes, dtypes = {}, {}, {}

    @functools.cache
    def shape_of(lengths):
        return core.tuple([core.constexpr(n) for n in lengths]), core.constexpr(math.prod(lengths))

    def init_tensor(self, handle, type):
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.shape, self.numel = shape_of(type.shape if type.is_block() else ())

    def init_known_block(self, element_ty, shape):
        shape = tuple(getattr(n, "value", n) for n in shape)
        key = element_ty.name, shape
        if key not in blocks:
            init_block(self, element_ty, [*shape])
            # One object whatever the elements are: others are compared length by length.
            self.shape = shapes.setdefault(shape, self.shape)
            blocks[key] = vars(self).copy()
        vars(self).update(blocks[key])

    def known_dtype(type):
        if type.name not in dtypes:
            dtypes[type.name] = dtype_of(type)
        return dtypes[type.name]

    compatible, checked = _brought_together(semantic.TritonSemantic)
    monkeypatch.setattr(semantic.TritonSemantic, "broadcast_impl_value", compatible)
    monkeypatch.setattr(semantic.TritonSemantic, "binary_op_type_checking_impl", checked)
    monkeypatch.setattr(core.block_type, "__init__", init_known_block)
    monkeypatch.setattr(core.tensor, "__init__", init_tensor)
    monkeypatch.setattr(core.tuple, "__eq__", lambda a, b: a is b or equal(a, b))
    monkeypatch.setattr(core.dtype, "__eq__", lambda a, b: a is b or same(a, b))
    monkeypatch.setattr(interpreter, "_get_np_dtype", known_dtype)
    # It does each sum of integers again, in 64 bits, for an assertion of debug mode, which is off.
    assert not interpreter.InterpreterOptions().debug
    name = "binary_op_sanitize_overflow_impl"
    monkeypatch.setattr(semantic.TritonSemantic, name, lambda *_: None)


@pytest.fixture
def interpreter_as_a_gpu(monkeypatch, quick_interpreter):
    """Mends what Triton's interpreter does otherwise than a GPU, where it changes results."""
    from triton import language as tl
    from triton.runtime import interpreter

    patch_tensor, convert = interpreter._patch_lang_tensor, interpreter._convert_float

    def patch(tensor, scope):
        # triton 3.6 calls int() on arrays of one element, which numpy 2.4 refuses (triton #9171).
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    def to_nearest(data, source, target, rounding):
        # fp32 to bf16 would be cut off, and bf16's subnormal numbers would come out as others.
        if (str(source), str(target)) == ("bf16", "fp32"):
            return data.astype(np.uint32) << 16
        if (str(source), str(target)) != ("fp32", "bf16"):
            return convert(data, source, target, rounding)
        return torch.tensor(data).to(torch.bfloat16).view(torch.uint16).numpy()

    def create_fma(self, x, y, z):
        # The product would be rounded before the sum, which leaves nothing of its rest.
        return interpreter.TensorHandle(_fma(x.data, y.data, z.data), z.dtype.scalar)

    def create_inline_asm(self, asm, constraints, values, types, pure, pack):
        # Of fp32, and refused.
        compute = {"ex2": np.exp2, "rcp": np.reciprocal}[asm[:3]]
        result = interpreter.TensorHandle(compute(values[0].data), types[0].scalar)
        return SimpleNamespace(get_result=lambda _: result)

    def create_dot(self, a, b, acc, *precision):
        # bf16 would be multiplied as the integers that hold it.
        def single(v):
            wide = to_nearest(v.data, tl.bfloat16, tl.float32, None).view(np.float32)
            return interpreter.TensorHandle(wide, tl.float32)

        a, b = (single(v) if v.dtype.scalar == tl.bfloat16 else v for v in (a, b))
        return dot(self, a, b, acc, *precision)

    def generic_reduce(self, given):
        # Element after element would be combined, by a call each; a GPU combines halves.
        def half(t, i):
            return self.to_tensor(np.split(t.handle.data, 2, self.axis)[i], t.dtype)

        while given[0].handle.data.shape[self.axis] > 1:
            given = self.combine_fn.fn(*(half(t, 0) for t in given), *(half(t, 1) for t in given))
        return [self.to_tensor(t.handle.data.squeeze(self.axis), t.dtype) for t in given]

    def call(self, *args, **kwargs):
        # The language would be patched again for each call of a function, which takes longer.
        return self.rewrite()(*args, **kwargs)

    patch_lang, language = interpreter._patch_lang, interpreter.tl
    both = SimpleNamespace(__globals__={"tl": language, "core": language.core})
    monkeypatch.setattr(interpreter, "_patch_lang", lambda fn: patch_lang(both))
    monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", call)
    monkeypatch.setattr(interpreter.ReduceOps, "generic_reduce", generic_reduce)
    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patch)
    monkeypatch.setattr(interpreter, "_convert_float", to_nearest)
    builder = interpreter.InterpreterBuilder
    dot = builder.create_dot
    monkeypatch.setattr(builder, "create_dot", create_dot)
    monkeypatch.setattr(builder, "create_fma", create_fma)
    monkeypatch.setattr(builder, "create_inline_asm", create_inline_asm)
    # A GPU's takes the other operand for NaN.
    monkeypatch.setattr(builder, "create_minnumf", lambda self, a, b: self.binary_op(a, b, np.fmin))


@pytest.fixture
def few_programs(monkeypatch):
    """To the interpreter a program costs the same whether its columns are 16 or 4096."""
    from fuseline.primitives.triton import parameters

    for meta in (parameters._LONG, parameters._FINISH):
        monkeypatch.setitem(meta, "BLOCK", 4096)
