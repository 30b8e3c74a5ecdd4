"""Every operator of the table, in every implementation, answers the checker's questions."""

import pytest
import torch
from ops.products import torch_reads_past_rows

from fuseline import table
from fuseline.testing import check

SPECS = table.load()
CELLS = [
    (name, impl.name)
    for name, spec in SPECS.items()
    for impl in spec.implementations
    if impl.role in ("ours", "eager")
]


def ask(name, impl, device, dtypes=None):
    spec = SPECS[name]
    reason = spec.implementation(impl).unavailable(device)
    if reason:
        pytest.skip(reason)
    report = check(spec, [impl], device=device, dtypes=dtypes, level="quick")
    assert report.ok, str(report)


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(("name", "impl"), CELLS)
def test_on_cpu(name, impl):
    # Torch's formulas and its libraries, which "auto" is on a CPU, have no kernel of ours a dtype:
    # one that is wide, one that is narrow. Nor have they threads of ours, for which small tensors
    # would wait.
    wide_and_narrow = None
    if impl in ("eager", "auto"):
        wide_and_narrow = [d for d in SPECS[name].dtypes if d in (torch.float32, torch.bfloat16)]
        torch.set_num_threads(1)
    if impl == "eager" and name.startswith("matmul_") and torch_reads_past_rows():
        wide_and_narrow = [torch.float32]
    ask(name, impl, "cpu", wide_and_narrow)


@pytest.mark.gpu
@pytest.mark.timeout(1200)  # Triton compiles some hundred variants, one after another
@pytest.mark.parametrize(("name", "impl"), CELLS)
def test_on_cuda(name, impl, monkeypatch):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    # By default convolutions of fp32 are TF32, and gradients of fp64 added by atomics.
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    ask(name, impl, "cuda")
