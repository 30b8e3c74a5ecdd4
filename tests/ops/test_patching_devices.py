"""On which devices fuseline.patch proves a norm: its own, its model's, or all that are usable."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fuseline
from fuseline.core import native
from fuseline.patching import form, proof
from fuseline.patching import model as model_of

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the kinds of device that are proven on; a CPU stands in for a GPU."""
    devices: list[str] = []

    def prove(module: Any, own: Any, made: Any, forms: Any, device: torch.device) -> Any:
        devices.append(device.type)
        return proof.prove(module, own, made, forms, torch.device("cpu"))

    both = [torch.device("cpu"), torch.device("cuda")]
    monkeypatch.setattr(model_of, "usable_devices", lambda: both)
    monkeypatch.setattr(model_of, "prove", prove)
    monkeypatch.setattr(form, "unavailable", lambda form, device_type: None)
    return devices


def test_a_norm_without_parameters_is_proven_on_every_device(proven: list[str]) -> None:
    norms = [torch.nn.RMSNorm(8, elementwise_affine=False), torch.nn.LayerNorm(8, bias=False)]
    norms[1].register_parameter("weight", None)
    net, x = torch.nn.Sequential(*norms), torch.randn(3, 8)
    report = fuseline.patch(net)
    assert proven == ["cpu", "cuda"] * 2
    assert [name for name, _ in report.replaced] == ["0", "1"]
    ((name, _, why),) = report.partly
    assert (name, "faster on a cpu" in why) == ("1", True)
    first, second = (vars(m)["_fuseline"].proofs for m in net)
    assert list(first) == list(second) == ["cpu", "cuda"]
    assert first["cuda"].cells == second["cuda"].cells
    net(x)
    assert [m.served for m in fuseline.patch_status(net).modules] == [1, 0]
    assert "already" in str(fuseline.patch(net))


def test_a_norm_without_parameters_is_proven_where_the_model_is(proven: list[str]) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.RMSNorm(8, elementwise_affine=False))
    fuseline.patch(net)
    assert proven == ["cpu"]
    why = "x is on meta, proven on cpu: patch again"
    net[1](torch.empty(3, 8, device="meta"))
    assert fuseline.patch_status(net).modules[0].own == {why: 1}
    net.register_buffer("elsewhere", torch.empty(0, device="meta"))
    assert "already" in str(fuseline.patch(net))


def test_a_model_that_moved_is_patched_again(
    proven: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    norm, x = torch.nn.RMSNorm(8, elementwise_affine=False), torch.randn(3, 8)
    monkeypatch.setattr(model_of, "usable_devices", lambda: [torch.device("cuda")])
    fuseline.patch(norm)
    norm(x)
    ((why, _),) = fuseline.patch_status(norm).modules[0].own.items()
    assert why == "x is on cpu, proven on cuda: patch again"
    monkeypatch.setattr(model_of, "usable_devices", lambda: [torch.device("cpu")])
    assert len(fuseline.patch(norm).replaced) == 1
    norm(x)
    assert fuseline.patch_status(norm).modules[0].served == 1
    assert proven == ["cuda", "cpu"]
    assert list(vars(norm)["_fuseline"].proofs) == ["cuda", "cpu"]


def test_patch_again_after_a_change_proves_anew(
    proven: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    norm, x = torch.nn.RMSNorm(8, eps=1e-6, elementwise_affine=False), torch.randn(3, 8)
    fuseline.patch(norm)
    norm.eps = 0.5
    wanted = torch.nn.functional.rms_norm(x, (8,), eps=0.5)
    torch.testing.assert_close(norm(x), wanted)
    monkeypatch.setattr(model_of, "usable_devices", lambda: [torch.device("cpu")])
    assert len(fuseline.patch(norm).replaced) == 1, "cuda's proof was of the former eps"
    assert list(vars(norm)["_fuseline"].proofs) == ["cpu"]
    torch.testing.assert_close(norm(x), wanted)
    assert fuseline.patch_status(norm).modules[0].served == 1
    assert "already" in str(fuseline.patch(norm))
