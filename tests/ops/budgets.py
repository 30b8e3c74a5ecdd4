"""Whether an implementation keeps its operator's budget on inputs of a test's own."""

from __future__ import annotations

from torch import Tensor

from fuseline.core.specs.spec import Inputs, OpSpec
from fuseline.testing.trial import Trial


def keeps_the_budget(spec: OpSpec, impl: str, inputs: Inputs) -> None:
    """Assert that outputs and gradients do, with gradients of the outputs that are drawn here."""
    x = next(v for v in inputs.values() if isinstance(v, Tensor))
    trial = Trial(spec, spec.implementation(impl), spec.cases[0], x.dtype, x.device)
    reason = trial.wrong_anywhere(inputs)
    assert reason is None, (x.shape, x.dtype, reason)
