"""Rotations of pairs in heads that lie anyhow, as a GPU runs them."""

from __future__ import annotations

import ctypes

import pytest
import torch
from cuda_on_cpu.calls import BF16, F32, F64, library_fixture
from cuda_on_cpu.sources import CUDA, CXX
from cuda_on_cpu.test_pointwise_on_cpu import ALL, assert_nothing_beside, result_of
from torch import Tensor

from fuseline.ops.rope.reference import rope as reference

pytestmark = [
    pytest.mark.skipif(not CXX, reason="no C++ compiler"),
    pytest.mark.skipif(CUDA is None, reason="no headers of CUDA"),
]

rope = library_fixture("rope")
# Of heads and of tables.
DTYPES = [*((dtype, dtype) for dtype in ALL), (torch.float16, F32), (BF16, F32)]


def table_steps(t: Tensor) -> list[int]:
    shared = t.dim() == 2 or len(t) == 1
    token, apart = t.stride(0 if t.dim() == 2 else 1), t.stride(2) if t.dim() == 4 else 0
    return [0 if shared else t.stride(0), token, apart, t.stride(-1)]


def rotated(
    library, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, back: bool
) -> tuple[Tensor, Tensor, bool]:
    """Both results, which lie as torch.empty_like, and whether packs of 16 bytes made them."""
    pairs = cos.shape[-1]
    sizes = [len(q), q.shape[2], q.shape[1], k.shape[1], pairs, q.shape[3] - 2 * pairs]
    name = ALL[q.dtype] + ("_f32" if cos.dtype != q.dtype else "")
    function = getattr(library, f"rotate_{name}")
    function.restype = ctypes.c_int64
    found = []
    for backwards in (0, 1):
        (q_to, room), (k_to, other) = result_of(q), result_of(k)
        strides = [*q.stride(), *k.stride(), *q_to.stride(), *k_to.stride()]
        steps = torch.tensor([*strides, *table_steps(cos), *table_steps(sin)])
        given = [q, k, cos, sin, q_to, k_to, torch.tensor(sizes), steps]
        pointers = [ctypes.c_void_p(t.data_ptr()) for t in given]
        packs = function(*pointers, *map(ctypes.c_int64, (interleaved, back, backwards)))
        assert packs in (0, 1)
        for memory, t in ((room, q), (other, k)):
            assert_nothing_beside(memory, t.numel())
        found.append((q_to, k_to))
    assert all(map(torch.equal, *found))
    return *found[0], bool(packs)


def assert_right(
    library, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, interleaved: bool, packs: bool
) -> None:
    eps = torch.finfo(q.dtype).eps
    for back in (False, True):
        *got, by_packs = rotated(library, q, k, cos, sin, interleaved, back)
        assert by_packs == packs
        swapped = sin.flip(-2) if sin.dim() == 4 else sin
        wide = [t.double() for t in (q, k, cos, -swapped if back else sin)]
        for y, right in zip(got, reference(*wide, interleaved), strict=True):
            torch.testing.assert_close(y.double(), right, rtol=eps, atol=2 * eps)


def drawn(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, dtype=F64).to(dtype)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dtype", "tables"), DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "tokens", "d", "pairs"),
    [((3, 2), 5, 64, 32), ((40, 8), 3, 128, 16), ((2, 2), 4, 10, 3), ((1, 5), 2, 7, 1)],
)
def test_heads_in_any_layout(rope, heads, tokens, d, pairs, dtype, tables, interleaved) -> None:
    torch.manual_seed(0)
    q, k = (drawn((2, n, tokens, d), dtype) for n in heads)
    angles = torch.randn(tokens, pairs, dtype=F64)
    cos, sin = angles.cos().to(tables), angles.sin().to(tables)
    whole = pairs % 8 == 0 and d % 8 == 0
    assert_right(rope, q, k, cos, sin, interleaved, whole)
    by_tokens = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k)]
    each = torch.randn(2, tokens, pairs, dtype=F64)
    of_each = [t.to(tables) for t in (each.cos(), each.sin())]
    assert_right(rope, *by_tokens, *of_each, interleaved, whole)
    wide = angles.repeat(1, 2)  # as models have tables
    halves = [t.to(tables)[:, :pairs] for t in (wide.cos(), wide.sin())]
    assert_right(rope, q, k, *halves, interleaved, whole)
    steps = [torch.stack((t, t), -1)[..., 0] for t in (q, k, cos, sin)]
    assert_right(rope, *steps, interleaved, False)
    odd = [torch.cat((t[..., :1], t), -1)[..., 1:] for t in (q, k)]
    assert_right(rope, *odd, cos, sin, interleaved, False)
    both = [drawn((2, tokens, 2, pairs), tables) for _ in "cs"]
    assert_right(rope, q, k, *both, interleaved, whole)
    repeated = q[:1, :1].expand(2, heads[0], -1, -1)
    assert_right(rope, repeated, k, cos[None], sin[None], interleaved, whole)


def test_nothing_to_do(rope) -> None:
    q, table = torch.empty(2, 3, 0, 8), torch.empty(0, 4)
    assert rotated(rope, q, q[:, :2], table, table, False, False)[0].numel() == 0
