"""Our attention in the registry of torch.nn.attention, as far as a CPU shows it."""

from __future__ import annotations

import pytest
import torch

from fuseline import sdpa
from fuseline.ops.attention.op import SELECTOR

attention = torch.nn.attention
pytestmark = pytest.mark.skipif(
    not hasattr(attention, "register_flash_attention_impl"), reason="this torch has no registry"
)
NAMES = tuple(f"aten::{name}" for name in sdpa._KERNELS)


def has_kernel(name: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(name, "CUDA")


def test_it_is_known_and_activated_only_if_asked() -> None:
    assert "fuseline" in attention.list_flash_attention_impls()
    assert attention.current_flash_attention_impl() is None
    before = [has_kernel(name) for name in NAMES]
    attention.activate_flash_attention_impl("fuseline")
    try:
        assert attention.current_flash_attention_impl() == "fuseline"
        assert all(map(has_kernel, NAMES))
    finally:
        attention.restore_flash_attention_impl()
    assert [has_kernel(name) for name in NAMES] == before
    assert attention.current_flash_attention_impl() is None


@pytest.mark.filterwarnings("error")
def test_it_does_not_warn_and_can_come_again() -> None:
    for _ in range(2):
        attention.activate_flash_attention_impl("fuseline")
        attention.restore_flash_attention_impl()


def test_flash_is_torchs_own_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    meta = torch.empty(1, 2, 64, 64, dtype=torch.bfloat16, device="meta")
    q = FakeTensor(FakeTensorMode(), meta, torch.device("cuda"))
    args = (q, q, q, None, False, None, -1, -1, 0.0, None, None, False)
    reasons = SELECTOR.choice("flash").unsupported
    assert reasons is not None
    assert reasons("fwd", *args) is None
    attention.activate_flash_attention_impl("fuseline")
    try:
        assert reasons("fwd", *args) == "torch.nn.attention runs 'fuseline' in its place"
    finally:
        attention.restore_flash_attention_impl()


def test_what_it_does_not_serve_is_named() -> None:
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(RuntimeError, match="fuseline: return_debug_mask is True, expected None"):
        sdpa._sdpa_forward(q, q, q, return_debug_mask=True)
    with pytest.raises(RuntimeError, match="bound is 0, expected at least 1"):
        sdpa._sdpa_forward(q, q[:, :, :3], q[:, :, :3], is_causal=True)
    if SELECTOR.unavailable("triton", "cpu"):
        with pytest.raises(RuntimeError, match="fuseline: attention cannot run here: Triton"):
            sdpa._sdpa_forward(q, q, q)
