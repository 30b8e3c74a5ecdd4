"""The operators' formulas in JAX against the references, and through torch's autograd."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("jax")
from fuselab.rivals import xla
from fuselab.twin.call import implementation
from fuselab.twin.formulas import FORMULAS
from fuseline import table
from fuseline.testing.oracle.accuracy import gradient_names

SPECS = table.load()
CPU = torch.device("cpu")


def cases(spec):
    """The first problems of the operator's checks."""
    return [case for case in spec.cases if "check" in case.suites][:12] or spec.cases[:1]


def tuple_of(out):
    return out if isinstance(out, tuple) else (out,)


def test_every_operator_has_a_formula():
    assert set(FORMULAS) == set(SPECS) == set(xla.OPS)


@pytest.mark.parametrize("op", SPECS)
def test_values_and_gradients_are_the_references(op):
    spec = SPECS[op]
    tried = 0
    for case in cases(spec):
        if torch.float64 not in spec.dtypes:
            pytest.skip(f"{op} takes no fp64: see test_e4m3")
        inputs = spec.make_inputs(case, torch.float64, CPU, torch.Generator())
        if any(isinstance(t, torch.Tensor) and not t.numel() for t in inputs.values()):
            continue
        wanted = gradient_names(spec, inputs)
        for name in wanted:
            inputs[name] = inputs[name].detach().requires_grad_()
        ours, theirs = (tuple_of(f(**inputs)) for f in (implementation(op), spec.reference))
        dys = [torch.randn_like(t) for t in theirs]
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
        if wanted:
            leaves = [inputs[n] for n in wanted]
            a, b = (torch.autograd.grad(out, leaves, dys) for out in (ours, theirs))
            torch.testing.assert_close(a, b, rtol=1e-7, atol=1e-7)
        tried += 1
    assert tried


@pytest.mark.parametrize("op", SPECS)
def test_results_have_the_dtypes_of_eager(op):
    spec = SPECS[op]
    for dtype in spec.dtypes:
        inputs = spec.make_inputs(cases(spec)[0], dtype, CPU, torch.Generator())
        ours, theirs = (tuple_of(f(**inputs)) for f in (implementation(op), spec.eager.fn))
        assert [(t.dtype, t.shape) for t in ours] == [(t.dtype, t.shape) for t in theirs]


@pytest.mark.parametrize("op", [op for op in SPECS if "_fp8" in op])
def test_e4m3_is_eagers_but_for_a_step(op: str) -> None:
    spec = SPECS[op]
    for case in cases(spec):
        inputs = spec.make_inputs(case, torch.float32, CPU, torch.Generator())
        ours, theirs = (tuple_of(f(**inputs)) for f in (implementation(op), spec.eager.fn))
        torch.testing.assert_close(ours[1:], theirs[1:])
        y, wanted = ours[0].float(), theirs[0].float()
        torch.testing.assert_close(y, wanted, rtol=0.126, atol=2**-9)  # so near is the next e4m3
        assert (y != wanted).float().mean() < 0.01


def test_a_pointer_that_xla_cannot_read():
    x = torch.randn(4 * 33 + 1)[1:].view(4, 33)
    torch.testing.assert_close(implementation("softmax")(x=x), torch.softmax(x, -1))


def test_an_operator_without_a_formula():
    with pytest.raises(KeyError, match="no formula in JAX"):
        implementation("conv2d")


def test_it_runs_only_where_it_is_asked_for():
    from fuselab.worker.implementations import baselines

    spec = SPECS["softmax"]
    assert "jax" not in baselines.names(spec)
    assert "jax" in baselines.names(spec, ["jax"])
