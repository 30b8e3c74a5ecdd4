"""What is peculiar to rope: pairs, tables, layouts, and gradients that rotate back."""

from __future__ import annotations

import pytest
import torch
from ops.instruction_sets import BUILT, for_instruction_set
from torch import Tensor
from torch.library import opcheck

import fuseline
from fuseline.core import native
from fuseline.ops.rope.op import CONTRACT
from fuseline.ops.rope.reference import rope as reference

OPS = torch.ops.fuseline
DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]

pytestmark = pytest.mark.skipif(
    native.status().state != "loaded", reason=str(native.status().why_not("cpu"))
)


def problem(
    *lead: int, tokens: int = 5, d: int = 12, pairs: int = 4, device: str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Three heads of q, two of k, and tables; `lead` is before all of them, then a batch of 2."""
    heads = (torch.randn(*lead, 2, n, tokens, d, device=device).to(dtype) for n in (3, 2))
    angles = torch.randn(*lead, tokens, pairs, dtype=torch.float64, device=device)
    q, k = heads
    return q, k, angles.cos().to(dtype), angles.sin().to(dtype)


def test_schemas_in_the_binary_are_those_of_the_contract() -> None:
    for name, schema in CONTRACT.schemas().items():
        wanted = torch._C.parse_schema(f"fuseline::{name}{schema}")
        assert getattr(OPS, name).default._schema == wanted


def test_pairs_turn_as_complex_numbers() -> None:
    q, k, cos, sin = problem()
    turn = torch.complex(cos, sin)
    for interleaved in (False, True):
        for x, y in zip((q, k), fuseline.rope(q, k, cos, sin, interleaved), strict=True):
            one, two = (x[..., :8:2], x[..., 1:8:2]) if interleaved else (x[..., :4], x[..., 4:8])
            found = (y[..., :8:2], y[..., 1:8:2]) if interleaved else (y[..., :4], y[..., 4:8])
            want = torch.complex(one, two) * turn
            torch.testing.assert_close(torch.complex(*found), want, rtol=1e-15, atol=1e-15)
            assert torch.equal(y[..., 8:], x[..., 8:])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("tokens", "d", "pairs"), [(3, 128, 64), (7, 96, 8), (5, 10, 3), (2, 150, 72), (1, 7, 1)]
)
def test_any_layout_and_tables_of_any_kind(
    tokens: int, d: int, pairs: int, dtype: torch.dtype, interleaved: bool, device: str
) -> None:
    """Heads by tokens, in steps, from odd addresses; the bits are those of contiguous ones."""
    q, k, cos, sin = problem(tokens=tokens, d=d, pairs=pairs, device=device, dtype=dtype)
    for tables in ((cos, sin), (cos.float(), sin.float())):
        want = fuseline.rope(q, k, *tables, interleaved)
        wide = [t.double() for t in (q, k, *tables)]
        for got, right in zip(want, reference(*wide, interleaved), strict=True):
            eps = torch.finfo(dtype).eps
            torch.testing.assert_close(got.double(), right, rtol=eps, atol=2 * eps)
        each = [torch.stack((t, t)) for t in tables]  # of each batch
        steps = [torch.stack((t, t), -1)[..., 0] for t in (q, k, *tables)]
        tokenwise = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in (q, k)]
        odd = [torch.cat((t[..., :1], t), -1)[..., 1:] for t in (q, k)]
        columns = [t.mT.contiguous().mT for t in (q, k)]
        for given in (
            (q, k, *each), (q, k, *(t[None] for t in tables)), (*tokenwise, *tables),
            tuple(steps), (*odd, *tables), (*columns, *tables),
            (q[:1].expand(2, -1, -1, -1), k, *tables),
        ):  # fmt: skip
            found = fuseline.rope(*given, interleaved)
            for x, y in zip(given, found, strict=False):
                assert y.stride() == torch.empty_like(x).stride()
            assert torch.equal(found[1], want[1])
            assert torch.equal(found[0][0], want[0][0])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("d", "pairs"), [(128, 64), (96, 8), (10, 3)])
def test_tables_for_both_of_a_pair(
    d: int, pairs: int, dtype: torch.dtype, interleaved: bool, device: str
) -> None:
    q, k, cos, sin = problem(tokens=6, d=d, pairs=pairs, device=device, dtype=dtype)
    alike = [t.unsqueeze(1).expand(-1, 2, -1)[None] for t in (cos, sin)]
    for got, want in zip(
        fuseline.rope(q, k, *alike, interleaved), fuseline.rope(q, k, cos, sin, interleaved),
        strict=True,
    ):  # fmt: skip
        assert torch.equal(got, want)
    both = [torch.randn(2, 6, 2, pairs, device=device).to(dtype) for _ in "cs"]
    leaves, dys = [q.requires_grad_(), k.requires_grad_()], [torch.randn_like(t) for t in (q, k)]
    results = []
    for tables in (both, [t.mT.contiguous().mT for t in both]):
        made = fuseline.rope(*leaves, *tables, interleaved)
        results.append((*made, *torch.autograd.grad(made, leaves, dys)))
    wide = [t.detach().double() for t in leaves]
    exact = reference(*(t.requires_grad_() for t in wide), *(t.double() for t in both), interleaved)
    wanted = (*exact, *torch.autograd.grad(exact, wide, [t.double() for t in dys]))
    for got, again, want in zip(*results, wanted, strict=True):
        assert torch.equal(got, again)
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(
            got.double(), want, rtol=eps, atol=4 * eps * float(want.detach().std())
        )


@pytest.mark.parametrize("interleaved", [False, True])
def test_gradients_rotate_back(interleaved: bool) -> None:
    q, k, cos, sin = problem()
    q.requires_grad_()
    k.requires_grad_()
    saved: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        there = fuseline.rope(q, k, cos, sin, interleaved)
    assert len(saved) == 2
    back = torch.autograd.grad(there, (q, k), there)  # lengths are kept: 1 for cos^2 + sin^2
    torch.testing.assert_close(back, (q.detach(), k.detach()), rtol=1e-14, atol=1e-14)


def test_one_gradient_alone() -> None:
    q, k, cos, sin = problem()
    both = torch.autograd.grad(
        fuseline.rope(q.requires_grad_(), k.requires_grad_(), cos, sin)[0].sum(), (q, k)
    )
    (alone,) = torch.autograd.grad(fuseline.rope(q, k.detach(), cos, sin)[0].sum(), q)
    assert torch.equal(alone, both[0])
    assert not both[1].any()


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_gradients_of_every_order(interleaved: bool, both: bool) -> None:
    q, k, *tables = problem(tokens=2, d=6, pairs=2)
    if both:
        tables = [torch.randn(2, 2, 2, 2, dtype=torch.float64) for _ in "cs"]
    inputs = [t.requires_grad_() for t in (q, k, *tables)]

    def call(*given: Tensor) -> tuple[Tensor, Tensor]:
        return fuseline.rope(*given, interleaved)

    def of_heads(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return fuseline.rope(q, k, inputs[2].detach(), inputs[3].detach(), interleaved)

    for function, given in ((call, inputs), (of_heads, inputs[:2])):
        assert torch.autograd.gradcheck(function, given, check_forward_ad=True)
        assert torch.autograd.gradgradcheck(function, given)


@pytest.mark.parametrize("tokens", [0, 3])
@pytest.mark.parametrize("interleaved", [False, True])
def test_opcheck(tokens: int, interleaved: bool) -> None:
    q, k, cos, sin = problem(tokens=tokens, dtype=torch.float32)
    leaves = (q.clone().requires_grad_(), k.clone().requires_grad_())
    opcheck(OPS.rope, (*leaves, cos, sin, interleaved))
    opcheck(OPS._rope_bwd, (q, k, cos, sin, interleaved))


def test_no_heads_and_no_batch() -> None:
    _, k, cos, sin = problem()
    none, same = fuseline.rope(k[:, :0], k, cos, sin)
    assert none.shape == (2, 0, 5, 12)
    assert torch.equal(same, fuseline.rope(k, k, cos, sin)[1])
    assert fuseline.rope(k[:0], k[:0], cos, sin)[0].shape == (0, 2, 5, 12)


def test_raw_operators_name_what_is_wrong() -> None:
    q, k, cos, sin = problem()
    for op, own, other in ((OPS._rope, "q", "k"), (OPS._rope_bwd, "dq", "dk")):
        for given, words in (
            ((q[0], k, cos, sin), f"{own} has shape"),
            ((q, k[:, :, 1:], cos, sin), f"{other} has shape"),
            ((q, k, cos[1:], sin), "cos has shape"),
            ((q, k, cos.half(), sin), "cos must have the dtype"),
            ((q, k, cos, sin[:, 1:]), "sin has shape"),
        ):
            with pytest.raises(RuntimeError, match=f"rope: {words}"):
                op(*given, False)


@pytest.mark.parametrize("interleaved", [False, True])
def test_compiled_without_a_break(interleaved: bool) -> None:
    given = problem(dtype=torch.float32)
    compiled = torch.compile(fuseline.rope, fullgraph=True)
    for a, b in zip(compiled(*given, interleaved), fuseline.rope(*given, interleaved), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "in_dims", [(0, 0, 0, 0), (0, 0, None, None), (0, None, 0, 0), (1, 2, 0, 1)]
)
def test_under_vmap(in_dims: tuple[int | None, ...]) -> None:
    """Tables of each element, or of all; of each batch, and for both of a pair, too."""
    given = problem(3, dtype=torch.float32)
    of_batch = [t[:, None].expand(-1, 2, -1, -1) for t in given[2:]]
    for tables in (given[2:], of_batch, [torch.stack((t, -t), -2) for t in of_batch]):
        all_of = (*given[:2], *tables)
        moved = [
            t[0] if dim is None else t.movedim(0, dim)
            for t, dim in zip(all_of, in_dims, strict=True)
        ]
        found = torch.vmap(fuseline.rope, in_dims)(*moved)
        for i in range(3):
            one = [t if dim is None else t.select(dim, i)
                   for t, dim in zip(moved, in_dims, strict=True)]  # fmt: skip
            for got, want in zip(found, fuseline.rope(*one), strict=True):
                assert torch.equal(got[i], want)


@pytest.mark.parametrize("isa", BUILT)
def test_each_instruction_set(isa: str) -> None:
    code = "import torch, ops.test_rope as t\n"
    code += "for dtype in t.DTYPES:\n"
    code += "    for interleaved in (False, True):\n"
    code += "        for sizes in ((3, 128, 64), (2, 150, 72), (5, 10, 3)):\n"
    code += "            t.test_any_layout_and_tables_of_any_kind(\n"
    code += "                *sizes, dtype, interleaved, 'cpu')\n"
    code += "            t.test_tables_for_both_of_a_pair(*sizes[1:], dtype, interleaved, 'cpu')\n"
    for_instruction_set(isa, code)
