"""Norms in float8_e4m3fn by scales of their own: the nearest values, scales, ends, no gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ops.instruction_sets import BUILT, for_instruction_set
from ops.norms_fp8 import BLOCKS, DTYPES, FP8, LEAST, OTHERS, by_blocks, call, given, same, wrong
from torch.library import opcheck

import fuseline
from fuseline.core import native
from fuseline.ops.add_rms_norm_fp8_dynamic.op import CONTRACT as ADD
from fuseline.ops.layer_norm_fp8.op import CONTRACT as LAYER_GIVEN
from fuseline.ops.layer_norm_fp8_dynamic.op import CONTRACT as LAYER
from fuseline.ops.rms_norm_fp8_dynamic.op import CONTRACT as RMS

RAW = torch.ops.fuseline
WHERE = {"cpu": "", "cuda": "__triton"}  # whose operators run there
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
# Ends of tiles, of rows, of blocks and of vectors, and rows that no program holds.
LENGTHS = [1, 3, 16, 17, 127, 577, 1001, 4097, 16384, 16384 + 7]

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)
each = pytest.mark.parametrize("op", OTHERS)
by = pytest.mark.parametrize("block", BLOCKS)
on = pytest.mark.parametrize("device", DEVICES)


@pytest.mark.parametrize("contract", [RMS, ADD, LAYER, LAYER_GIVEN], ids=lambda c: c.name)
def test_schemas_in_the_binary_are_those_of_the_contract(contract: Any) -> None:
    for name, schema in contract.schemas().items():
        wanted = torch._C.parse_schema(f"fuseline::{name}{schema}")
        assert getattr(RAW, name).default._schema == wanted


@each
@by
@on
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_values_are_the_nearest(op: str, block: int | None, device: str, dtype: Any) -> None:
    for n in LENGTHS:
        inputs = given(op, (5, n), dtype, device, block=block)
        outputs = call(op, inputs)
        y, scale = outputs[:2]
        assert y.dtype == FP8
        assert scale.shape == (5, len(by_blocks(y[0], block)))
        assert all(t.is_contiguous() for t in outputs)
        assert wrong(op, inputs, outputs) is None, n
        for values in by_blocks(y.float(), block):
            assert (values.abs().amax(-1) == 448.0).all()


@each
@pytest.mark.parametrize("kind", ["float32", "none"])
def test_parameters_of_another_kind(op: str, kind: str) -> None:
    for dtype in DTYPES:
        inputs = given(op, (5, 301), dtype, block=64)
        for name in ("weight", "bias"):
            if name in inputs:
                inputs[name] = torch.randn(301) if kind == "float32" else None
        assert wrong(op, inputs, call(op, inputs)) is None


@pytest.mark.parametrize("isa", BUILT)
def test_each_instruction_set(isa: str) -> None:
    code = """
import torch
from ops.norms_fp8 import OTHERS
from ops.test_norms_fp8 import test_values_are_the_nearest as values
for op in OTHERS:
    for block in (None, 128):
        values(op, block, "cpu", torch.bfloat16)
"""
    for_instruction_set(isa, code)


@by
@on
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_residual_form_is_the_norm_of_the_rounded_sum(
    block: int | None, device: str, dtype: Any
) -> None:
    for n in (61, 1001, 4096, 20003):
        inputs = given("add_rms_norm_fp8_dynamic", (7, n), dtype, device, block=block)
        y, scale, new_residual = call("add_rms_norm_fp8_dynamic", inputs)
        assert torch.equal(new_residual, inputs["x"] + inputs.pop("residual"))
        wanted = call("rms_norm_fp8_dynamic", {**inputs, "x": new_residual})
        assert same(y, wanted[0])
        assert same(scale, wanted[1])


@each
@on
def test_a_block_of_zeros_has_the_least_scale(op: str, device: str) -> None:
    inputs = given(op, (4, 300), torch.float32, device, block=128)
    for name in ("weight", "bias"):
        if name in inputs:
            inputs[name][128:256] = 0.0
    y, scale = call(op, inputs)[:2]
    assert (scale[:, 1] == LEAST).all()
    assert (y.float()[:, 128:256] == 0.0).all()
    assert (scale[:, (0, 2)] > 1e-4).all()


@each
@on
def test_a_row_of_zeros(op: str, device: str) -> None:
    for block in BLOCKS:
        inputs = given(op, (3, 130), torch.bfloat16, device, block=block)
        for name in ("x", "residual", "bias"):
            if name in inputs:
                inputs[name].zero_()
        y, scale = call(op, inputs)[:2]
        assert (y.float() == 0.0).all()
        assert (scale == LEAST).all()


@each
@on
def test_nan_stays_in_its_row_and_its_block(op: str, device: str) -> None:
    inputs = given(op, (4, 300), torch.float32, device, block=128)
    plain = call(op, inputs)
    inputs["x"][1, 7] = torch.nan
    inputs["weight"][130] = torch.nan
    y, scale = (t.float() for t in call(op, inputs)[:2])
    assert y[1].isnan().all()
    assert scale[1].isnan().all()
    rest = torch.tensor([0, 2, 3], device=device)
    assert y[rest, 128:256].isnan().all()
    assert scale[rest, 1].isnan().all()
    for columns, k in ((slice(0, 128), 0), (slice(256, 300), 2)):
        assert torch.equal(y[rest, columns], plain[0].float()[rest, columns])
        assert torch.equal(scale[rest, k], plain[1][rest, k])


@each
@on
def test_inf_makes_an_infinite_scale_unless_it_is_bounded(op: str, device: str) -> None:
    inputs = given(op, (4, 300), torch.float32, device, block=128)
    inputs["weight"][5] = torch.inf
    inputs["x"][:, 5] = inputs["x"][:, 5].abs() + 100.0
    y, scale = (t.float() for t in call(op, inputs)[:2])
    assert (scale[:, 0] == torch.inf).all()
    assert y[:, 5].isnan().all()
    assert (y[:, 6:128] == 0.0).all()
    assert wrong_beside(op, inputs, y, scale) is None
    y, scale = (t.float() for t in call(op, {**inputs, "scale_ub": 4.0})[:2])
    assert (scale <= torch.tensor(4.0 / 448.0)).all()
    assert (y[:, 5] == 448.0).all()


def wrong_beside(op: str, inputs: dict[str, Any], y: torch.Tensor, scale: torch.Tensor) -> Any:
    """Return what differs from finite weights in the blocks without an Inf, or None."""
    weight = inputs["weight"].clone()
    weight[5] = 1.0
    other = [t.float() for t in call(op, {**inputs, "weight": weight})[:2]]
    equal = torch.equal(y[:, 128:], other[0][:, 128:]) and torch.equal(
        scale[:, 1:], other[1][:, 1:]
    )
    return None if equal else "other blocks"


@each
@by
@on
def test_scale_ub_bounds_the_maximum(op: str, block: int | None, device: str) -> None:
    inputs = given(op, (5, 700), torch.bfloat16, device, block=block, scale_ub=1.5)
    outputs = call(op, inputs)
    assert (outputs[1] <= torch.tensor(1.5 / 448.0)).all()
    assert wrong(op, inputs, outputs) is None
    assert (outputs[0].float().abs() == 448.0).sum() > outputs[1].numel()
    for loose in (None, 1e30, float("inf")):
        got = call(op, {**inputs, "scale_ub": loose})
        assert same(got[1], call(op, {**inputs, "scale_ub": None})[1])


@each
@by
def test_rows_beyond_the_range_of_fp32_squares_keep_their_bits(op: str, block: int | None) -> None:
    for n in (7, 261):
        inputs = given(op, (5, n), torch.float32, eps=0.0, block=block)
        plain = call(op, inputs)
        for factor in (2.0**100, 2.0**-100):
            scaled = {k: v * factor if k in ("x", "residual") else v for k, v in inputs.items()}
            y, scale = call(op, scaled)[:2]
            assert same(y, plain[0])
            assert same(scale, plain[1])


@each
@by
@on
def test_a_row_does_not_know_its_batch(op: str, block: int | None, device: str) -> None:
    for n in (61, 700, 17000):
        inputs = given(op, (41, n), torch.bfloat16, device, block=block)
        together = call(op, inputs)
        for rows in (slice(0, 1), slice(17, 18), slice(32, 41)):
            part = {k: v[rows] if k in ("x", "residual") else v for k, v in inputs.items()}
            assert all(same(t[rows], a) for t, a in zip(together, call(op, part), strict=True))


@each
@on
@pytest.mark.parametrize("impl", ["auto", "eager"])
@pytest.mark.parametrize("shape", [(0, 32), (3, 0), (2, 0, 61), (0,)])
def test_empty_tensors(op: str, device: str, impl: str, shape: tuple[int, ...]) -> None:
    for block, count in ((None, 1), (16, -(-shape[-1] // 16))):
        inputs = given(op, shape, torch.float32, device, block=block)
        y, scale, *rest = call(op, inputs, impl)
        assert y.shape == shape
        assert scale.shape == (*shape[:-1], count)
        assert all(t.shape == shape for t in rest)
        assert (scale == LEAST).all()


@each
@on
def test_opcheck_and_compile(op: str, device: str) -> None:
    inputs = given(op, (2, 3, 48), torch.bfloat16, device)
    for block, scale_ub in ((None, None), (16, 2.5)):
        args = (*inputs.values(),)[:-2]
        for name in (op, f"_{op}"):
            opcheck(getattr(RAW, name + WHERE[device]), (*args, block, scale_ub))
        torch._dynamo.reset()
        compiled = torch.compile(getattr(fuseline, op), fullgraph=True)
        wanted = getattr(fuseline, op)(*args, block, scale_ub)
        assert all(map(same, compiled(*args, block, scale_ub), wanted))


@each
@by
def test_vmap_over_each_argument(op: str, block: int | None) -> None:
    inputs = given(op, (4, 3, 40), torch.float32, block=block)
    numbers = [inputs.pop(name) for name in ("eps", "block", "scale_ub")]
    for batched in ({"x"}, {"x", *OTHERS[op]}, {"weight"}, {"x", "weight"}):
        dims = tuple(0 if name in batched else None for name in inputs)
        args = []
        for name, t in inputs.items():
            own = torch.randn(4, 40) if t.dim() == 1 and name in batched else t
            args.append(own[0] if t.dim() == 3 and name not in batched else own)

        def run(*t: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return getattr(fuseline, op)(*t, *numbers)

        got = torch.func.vmap(run, in_dims=dims)(*args)
        for i in range(4):
            one = [a if d is None else a[i] for a, d in zip(args, dims, strict=True)]
            # A step of e4m3 at most, where a formula of other roundings is beside a tie.
            for a, b in zip(got, run(*one), strict=True):
                torch.testing.assert_close(a[i].float(), b.float(), rtol=0.07, atol=0.01)


@each
@pytest.mark.parametrize("impl", ["auto", "eager"])
def test_a_gradient_is_refused_by_name(op: str, impl: str) -> None:
    inputs = given(op, (3, 32), torch.float32)
    for name, value in inputs.items():
        if not isinstance(value, torch.Tensor):
            continue
        wanting = {**inputs, name: value.clone().requires_grad_()}
        with pytest.raises(RuntimeError, match=f"{name} requires grad.*forward only"):
            call(op, wanting, impl)
        with torch.no_grad():
            pairs = zip(call(op, wanting, impl), call(op, inputs, impl), strict=True)
            assert all(same(a, b) for a, b in pairs)
        with pytest.raises(RuntimeError, match="forward only"):
            getattr(RAW, op)(*wanting.values())


@each
@on
def test_raw_operators_refuse_what_the_kernels_cannot_read(op: str, device: str) -> None:
    inputs = given(op, (3, 32), torch.float32, device)
    bad: list[tuple[dict[str, Any], str]] = [
        ({"x": inputs["x"].double()}, "float32"),
        ({"weight": inputs["weight"][:3]}, "weight has shape"),
        ({"block": 100}, "block is 100"),
        ({"block": 0}, "block is 0"),
        ({"block": 2048}, "block is 2048"),
        ({"scale_ub": -1.0}, "scale_ub is -1"),
        ({"scale_ub": float("nan")}, "scale_ub is nan"),
        *(({name: inputs[name].half()}, name) for name in OTHERS[op] if name == "residual"),
        *(({name: inputs[name][:2]}, f"{name} has shape") for name in OTHERS[op]),
    ]
    for change, words in bad:
        # A GPU's are Triton's, which Python checks.
        with pytest.raises((RuntimeError, ValueError, TypeError), match=words):
            getattr(RAW, f"_{op}{WHERE[device]}")(*({**inputs, **change}.values()))
