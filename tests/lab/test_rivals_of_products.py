"""Rivals of products and attention: how they are called, and what they are not asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from fake_rivals import fake, installed
from torch import Tensor

from fuselab import rivals
from fuselab.worker.implementations import baselines
from fuselab.worker.implementations.baselines import Unsupported
from fuselab.worker.operators import specs


@pytest.fixture(autouse=True)
def _nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)


def noted(*given: Any, **named: Any) -> tuple[Any, ...]:
    """Answer as a kernel with several results, of which the second is what it was given."""
    return None, Given(given, named)


@dataclass(frozen=True)
class Given:
    """What a fake kernel was called with; a view of it is itself."""

    positional: tuple[Any, ...]
    named: dict[str, Any]

    def view(self, *shape: int) -> Given:
        return self


A, B, BIAS = torch.ones(2, 3, 4), torch.ones(4, 5), torch.ones(5)


@pytest.mark.parametrize(
    ("op", "given", "activation"),
    [
        ("matmul_relu", {"a": A, "b": B}, "relu"),
        ("matmul_add_relu", {"a": A, "b": B, "bias": BIAS}, "relu"),
        ("matmul_add_gelu", {"a": A, "b": B, "bias": BIAS, "approximate": "tanh"},
         "gelu_tanh_approx"),
        ("matmul_add_gelu", {"a": A, "b": B, "bias": BIAS, "approximate": "none"}, "gelu_erf"),
    ],
)  # fmt: skip
def test_quacks_epilogues_are_called_as_they_stand_and_have_no_gradient(
    op: str, given: dict[str, Any], activation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(monkeypatch, "quack-kernels")
    fake(monkeypatch, "quack.gemm_interface", gemm_act=noted)
    product = baselines.make(specs.load()[op], "quack", "cuda")
    called: Any = product(**given)
    assert [tuple(t.shape) for t in called.positional] == [(6, 4), (4, 5)]
    bias = given.get("bias")
    assert called.named == {"bias": bias, "activation": activation, "store_preact": False}
    with pytest.raises(RuntimeError, match="no gradient"):
        product(**given | {"a": A.clone().requires_grad_()})


def test_quacks_linear_and_mlp_have_rows_of_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, "quack-kernels")
    fake(monkeypatch, "quack.linear", linear_func=lambda *given: given)
    fake(monkeypatch, "quack.mlp", mlp_func=lambda *given, **named: (given, named))
    loaded = specs.load()
    x, w, bias = baselines.make(loaded["matmul_add"], "quack", "cuda")(A, B, BIAS)  # type: ignore[misc]
    assert x is A
    assert w.shape == (5, 4)
    assert bias is BIAS
    w2, b2 = torch.ones(5, 4), torch.ones(4)
    mlp = baselines.make(loaded["mlp"], "quack", "cuda")
    for ours, its in (("gelu", "gelu_tanh_approx"), ("gelu_none", "gelu_erf"), ("relu", "relu")):
        given, named = mlp(A, B, BIAS, w2, b2, ours)
        assert [tuple(t.shape) for t in given[:3]] == [(2, 3, 4), (5, 4), (4, 5)]
        assert (given[3], named) == (its, {"bias1": BIAS, "bias2": b2})
    two = baselines.make(loaded["matmul_matmul"], "quack", "cuda")
    assert two(A, B, w2, "relu")[0][3] == "relu"
    (first, _), last = two(A, B, w2)
    assert first is A
    assert last.shape == (4, 5)


Q = torch.ones(2, 4, 7, 8, dtype=torch.bfloat16)
ATTENTION: dict[str, Any] = {
    "q": Q, "k": Q, "v": Q, "mask": None, "causal": True, "scale": 0.5, "window": None,
    "dropout": 0.0, "seed": 3, "deterministic": True,
}  # fmt: skip


def kernel_of_attention(q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Any:
    """Be a kernel that notes how it was called, of tensors whose heads come after their rows."""
    assert [tuple(t.shape) for t in (q, k, v)] == [(2, 7, 4, 8)] * 3
    kernel_of_attention.named = named  # type: ignore[attr-defined]
    return q * 3


@pytest.mark.parametrize(
    ("name", "package", "module", "how", "called"),
    [
        ("flash_attn_2", "flash-attn", "flash_attn", {"window": (2, -5)},
         {"softmax_scale": 0.5, "causal": True, "window_size": (2, -1), "deterministic": True}),
        ("flash_attn_4", "flash-attn-4", "flash_attn.cute.interface", {"window": 3},
         {"softmax_scale": 0.5, "causal": True, "window_size": (2, 2), "deterministic": True}),
        ("flash_attn_4", "flash-attn-4", "flash_attn.cute.interface", {"causal": False},
         {"softmax_scale": 0.5, "causal": False, "window_size": (None, None),
          "deterministic": True}),
        ("xformers", "xformers", "xformers.ops", {"deterministic": False},
         {"scale": 0.5, "attn_bias": "lower"}),
        ("xformers", "xformers", "xformers.ops", {"causal": False, "deterministic": False},
         {"scale": 0.5, "attn_bias": None}),
    ],
)  # fmt: skip
def test_attention_of_others_is_given_heads_last(
    name: str,
    package: str,
    module: str,
    how: dict[str, Any],
    called: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed(monkeypatch, package)
    several = name == "flash_attn_4"
    contents = {
        "flash_attn_func": lambda *q, **n: (
            (kernel_of_attention(*q, **n), None) if several else kernel_of_attention(*q, **n)
        ),
        "memory_efficient_attention": kernel_of_attention,
        "LowerTriangularMask": lambda: "lower",
    }
    fake(monkeypatch, module, **contents)
    attention = baselines.make(specs.load()["attention"], name, "cuda")
    out = attention(**ATTENTION | how)
    assert torch.equal(out, Q * 3)
    assert kernel_of_attention.named == called  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "package", "module", "ends"),
    [
        ("flash_attn_2", "flash-attn", "flash_attn", (4, -1)),
        ("flash_attn_4", "flash-attn-4", "flash_attn.cute.interface", (4, None)),
    ],
)
def test_packed_sequences_are_given_as_they_are(
    name: str,
    package: str,
    module: str,
    ends: tuple[int, int | None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kernel(q: Tensor, k: Tensor, v: Tensor, **named: Any) -> Any:
        seen.update(named)
        return (q * 3, None) if name == "flash_attn_4" else q * 3

    seen: dict[str, Any] = {}
    installed(monkeypatch, package)
    fake(monkeypatch, module, flash_attn_varlen_func=kernel)
    spec, starts = specs.load()["attention_varlen"], torch.tensor([0, 3, 7], dtype=torch.int32)
    of_lengths = {
        **{f"cu_seqlens_{of}": starts for of in "qk"},
        **{f"max_seqlen_{of}": 4 for of in "qk"},
    }
    packed = torch.ones(7, 2, 8, dtype=torch.bfloat16)
    how = {"causal": True, "scale": None, "dropout": 0.0, "seed": 3, "deterministic": False}
    given = {"q": packed, "k": packed, "v": packed, "window": (4, -1), **of_lengths, **how}
    baselines.refuse(spec, name, given)
    assert torch.equal(baselines.make(spec, name, "cuda")(**given), packed * 3)
    passed = {"softmax_scale": None, "causal": True, "deterministic": False, "window_size": ends}
    assert seen == of_lengths | passed
    with pytest.raises(Unsupported, match="end at the last of both"):
        baselines.refuse(spec, name, given | {"cu_seqlens_k": starts + 1})
    baselines.refuse(
        spec, name, given | {"cu_seqlens_k": starts + 1, "window": None, "causal": False}
    )
    with pytest.raises(Unsupported, match="drops other elements"):
        baselines.refuse(spec, name, given | {"dropout": 0.5})


SHORT = torch.ones(2, 4, 6, 8, dtype=torch.bfloat16)
SHARED = torch.ones(2, 2, 7, 8, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("flash_attn_2", {"mask": Q[..., :7]}, "takes no mask"),
        ("flash_attn_4", {"dropout": 0.5}, "other elements"),
        ("flash_attn_2", {"k": SHORT, "v": SHORT}, "end at the last of both"),
        ("flash_attn_4", {"k": SHORT, "v": SHORT, "causal": False, "window": 3}, "the last of"),
        ("flash_attn_2", {"q": Q.float()}, "q is float32, it takes float16, bfloat16"),
        ("xformers", {"mask": Q[..., :7]}, "masks have an alignment"),
        ("xformers", {"window": 3}, "windows end at the last"),
        ("xformers", {"k": SHARED, "v": SHARED}, "share keys"),
        ("xformers", {"dropout": 0.1}, "other elements"),
        ("xformers", {}, "no fixed order"),
        ("flash_attn_2", {}, ""),
        ("flash_attn_4", {"k": SHORT, "v": SHORT, "causal": False}, ""),
        ("xformers", {"deterministic": False, "k": SHORT, "v": SHORT}, ""),
    ],
)
def test_what_attention_of_others_computes_otherwise_is_refused(
    name: str, change: dict[str, Any], words: str
) -> None:
    spec, given = specs.load()["attention"], ATTENTION | change
    if words:
        with pytest.raises(Unsupported, match=words):
            baselines.refuse(spec, name, given)
    else:
        baselines.refuse(spec, name, given)


def test_quack_takes_one_matrix_of_weights() -> None:
    given = {"a": A.bfloat16(), "b": torch.ones(2, 4, 5, dtype=torch.bfloat16)}
    with pytest.raises(Unsupported, match="one matrix b, not 3"):
        baselines.refuse(specs.load()["matmul_relu"], "quack", given)


def test_a_rival_has_a_name_of_its_own() -> None:
    for spec in specs.load().values():
        own = [impl.name for impl in spec.implementations]
        assert not set(own) & set(rivals.of(spec.name))
        assert len(rivals.of(spec.name)) == sum(rival.op == spec.name for rival in rivals.ALL)


@pytest.mark.parametrize("how", [{}, {"causal": True}, {"window": (3, 9), "scale": 0.3}])
def test_flex_is_asked_for_what_attention_is(how: dict[str, Any]) -> None:
    torch._dynamo.reset()
    spec, flex = specs.load()["attention"], rivals.of("attention")["flex"]
    q, (k, v) = torch.randn(2, 4, 40, 16), torch.randn(2, 2, 2, 50, 16).unbind()
    assert flex.refuses({"q": q, "k": k, "v": v, **how}) is None
    with torch.no_grad():  # its backward has no kernels for a CPU
        found = flex.load()(q, k, v, **how)
    wanted = spec.reference(*(t.double() for t in (q, k, v)), **how)
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)


def test_flex_says_what_it_has_not() -> None:
    flex = rivals.of("attention")["flex"]
    q, mask = torch.ones(1, 2, 4, 16), torch.ones(4, 4)
    for more, word in (({"mask": mask}, "functions"), ({"dropout": 0.1}, "dropout"),
                       ({"deterministic": True}, "order")):  # fmt: skip
        assert word in (flex.refuses({"q": q, "k": q, "v": q, **more}) or "")
