"""What is done to a good tensor to make a hostile one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
import torch.autograd.forward_ad as fwd_ad
from torch import Tensor
from torch._subclasses import FakeTensorMode

Mutation = Callable[[Tensor, random.Random], Tensor]
MUTATIONS: dict[str, Mutation] = {}

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.int64, torch.int32, torch.int8, torch.uint8, torch.uint16, torch.bool,
    torch.complex64, torch.complex128, torch.complex32,
)  # fmt: skip
FAKE = FakeTensorMode(allow_non_fake_inputs=True)
VALUES = (0.0, -0.0, 1.0, math.nan, math.inf, -math.inf, 6e4, 3e38, 1e-45, 1e-200, 1e300, -448.0)

# torch itself crashes on what follows, no operator of ours called, so that it is not tried: a
# storage that was freed in part (torch.softmax and F.layer_norm read past its end), qint32 by
# channels (an illegal instruction), a quantised tensor of a subclass seen as another dtype, the
# collection of quantised views as garbage (the child turns it off), further changes of LAST, and
# both of APART in one call: a tangent takes it to torch's operators, which read what was freed.
LAST = frozenset(
    ("without memory", "zero tensor", "functional", "fake", "quantized",
     "quantized and seen as", "quantized and negated")
)  # fmt: skip

APART = frozenset(("dual", "without memory"))


def mutation(change: Mutation) -> Mutation:
    MUTATIONS[change.__name__.replace("_", " ")] = change
    return change


class Plain(Tensor):
    """A subclass that changes nothing."""


class Wrapper(Tensor):
    """A subclass without memory of its own, around a tensor."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapper:
        if inner.layout != torch.strided:
            raise TypeError("a wrapper of dense tensors")
        return torch.Tensor._make_wrapper_subclass(
            cls, inner.shape, inner.stride(), inner.storage_offset(), dtype=inner.dtype
        )

    def __init__(self, inner: Tensor) -> None:
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        args = [a.inner if isinstance(a, Wrapper) else a for a in args]
        return func(*args, **(kwargs or {}))


# Dtypes and values.
@mutation
def dtype(t: Tensor, draw: random.Random) -> Tensor:
    return t.to(draw.choice(DTYPES))


@mutation
def seen_as(t: Tensor, draw: random.Random) -> Tensor:
    return t.view(draw.choice(DTYPES))


@mutation
def filled(t: Tensor, draw: random.Random) -> Tensor:
    return torch.full_like(t, draw.choice(VALUES))


@mutation
def some_filled(t: Tensor, draw: random.Random) -> Tensor:
    t = t.clone()
    t.view(-1)[torch.rand(t.numel()) < draw.choice((0.02, 0.5))] = draw.choice(VALUES)
    return t


@mutation
def scaled(t: Tensor, draw: random.Random) -> Tensor:
    return t * draw.choice((1e-30, 1e-4, 300.0, 1e4, 1e30))


# Shapes.
@mutation
def scalar(t: Tensor, draw: random.Random) -> Tensor:
    return t.reshape(-1)[0]


@mutation
def one_element(t: Tensor, draw: random.Random) -> Tensor:
    return t.reshape(-1)[:1]


@mutation
def empty(t: Tensor, draw: random.Random) -> Tensor:
    shape = list(t.shape)
    shape[draw.randrange(t.dim())] = 0
    return t.new_empty(shape)


@mutation
def nothing(t: Tensor, draw: random.Random) -> Tensor:
    return torch.Tensor()


@mutation
def one_less(t: Tensor, draw: random.Random) -> Tensor:
    return t.narrow(draw.randrange(t.dim()), 1, t.shape[0] - 1)


@mutation
def more_dimensions(t: Tensor, draw: random.Random) -> Tensor:
    return t.reshape((1,) * draw.choice((1, 2, 61, 62)) + t.shape)


@mutation
def flat(t: Tensor, draw: random.Random) -> Tensor:
    return t.reshape(-1)


@mutation
def of_huge_shape(t: Tensor, draw: random.Random) -> Tensor:
    shape = draw.choice(
        (
            (2**31,),
            (2**31, 8),
            (1, 2**31),
            (2**40, 3),
            (2**62, 2),
            (2**31, 0),
            (0, 2**62),
            (2**63 - 1,),
        )
    )
    return t.reshape(-1)[:1].expand(shape)


@mutation
def many_rows(t: Tensor, draw: random.Random) -> Tensor:
    return t.reshape(-1)[:1].expand(draw.choice(((2**20, 1), (70000, 3), (3, 1, 2**18))))


# Memory.
@mutation
def transposed(t: Tensor, draw: random.Random) -> Tensor:
    return t.mT.contiguous().mT


@mutation
def permuted(t: Tensor, draw: random.Random) -> Tensor:
    return t.permute(draw.sample(range(t.dim()), t.dim()))


@mutation
def with_gaps(t: Tensor, draw: random.Random) -> Tensor:
    wide = t.new_full((*t.shape[:-1], t.shape[-1] * 2 + 3), 7)
    view = wide[..., draw.choice((0, 1)) :: 2][..., : t.shape[-1]]
    return view.copy_(t)


@mutation
def past_the_start(t: Tensor, draw: random.Random) -> Tensor:
    offset = draw.choice((1, 3, 17))
    return t.new_empty(t.numel() + offset)[offset:].view(t.shape).copy_(t)


@mutation
def off_its_alignment(t: Tensor, draw: random.Random) -> Tensor:
    raw = torch.empty(t.nbytes + 64, dtype=torch.uint8)
    wide = torch.empty(0, dtype=t.dtype).set_(raw.untyped_storage(), 0, (0,))
    return torch.as_strided(wide, t.shape, t.stride(), 1).copy_(t)


@mutation
def expanded(t: Tensor, draw: random.Random) -> Tensor:
    return t.narrow(draw.randrange(t.dim()), 0, 1).expand(t.shape)


@mutation
def overlapping(t: Tensor, draw: random.Random) -> Tensor:
    strides = [draw.choice((0, 1, 2, 3)) for _ in t.shape]
    return t.as_strided(t.shape, strides, 0)


@mutation
def without_memory(t: Tensor, draw: random.Random) -> Tensor:
    t = t.clone()
    t.untyped_storage().resize_(0)
    return t


@mutation
def shared(t: Tensor, draw: random.Random) -> Tensor:
    return t.clone().share_memory_()


# Bits and kinds.
@mutation
def negated(t: Tensor, draw: random.Random) -> Tensor:
    return torch._neg_view(t)


@mutation
def conjugated(t: Tensor, draw: random.Random) -> Tensor:
    return torch.complex(t, t).conj()


@mutation
def imaginary(t: Tensor, draw: random.Random) -> Tensor:
    return torch.complex(t, t).conj().imag


@mutation
def zero_tensor(t: Tensor, draw: random.Random) -> Tensor:
    return torch._efficientzerotensor(t.shape, dtype=t.dtype)


@mutation
def quantized(t: Tensor, draw: random.Random) -> Tensor:
    kind = draw.choice((torch.qint8, torch.quint8, torch.qint32))
    if type(t) is not Tensor:
        raise TypeError("torch crashes on views of a subclass that is quantised")
    t = t.float().resolve_neg()
    if draw.random() < 0.5 or t.dim() == 0:
        return torch.quantize_per_tensor(t, 0.1, 3 if kind == torch.quint8 else 0, kind)
    rows, kind = t.shape[0], draw.choice((torch.qint8, torch.quint8))
    return torch.quantize_per_channel(t, torch.ones(rows), torch.zeros(rows), 0, kind)


@mutation
def quantized_and_seen_as(t: Tensor, draw: random.Random) -> Tensor:
    return seen_as(quantized(t, draw), draw)


@mutation
def quantized_and_negated(t: Tensor, draw: random.Random) -> Tensor:
    return torch._neg_view(quantized(t, draw))


@mutation
def nested(t: Tensor, draw: random.Random) -> Tensor:
    layout = draw.choice((torch.strided, torch.jagged))
    return torch.nested.nested_tensor([t, t[:1]], layout=layout)


@mutation
def nested_of_one(t: Tensor, draw: random.Random) -> Tensor:
    return torch.nested.as_nested_tensor(t)


@mutation
def sparse(t: Tensor, draw: random.Random) -> Tensor:
    if max(t.shape) > 2**20:
        raise ValueError("torch counts the rows one by one, empty or not")
    return draw.choice((Tensor.to_sparse, Tensor.to_sparse_csr, Tensor.to_sparse_csc))(t)


@mutation
def mkldnn(t: Tensor, draw: random.Random) -> Tensor:
    return t.to_mkldnn()


@mutation
def meta(t: Tensor, draw: random.Random) -> Tensor:
    return t.to("meta")


@mutation
def fake(t: Tensor, draw: random.Random) -> Tensor:
    if t.is_inference():
        raise ValueError("torch's fake tensors fail an assertion of inference mode")
    return FAKE.from_tensor(t)


@mutation
def functional(t: Tensor, draw: random.Random) -> Tensor:
    return torch._to_functional_tensor(t)


@mutation
def subclass(t: Tensor, draw: random.Random) -> Tensor:
    return t.as_subclass(Plain)


@mutation
def wrapped(t: Tensor, draw: random.Random) -> Tensor:
    return Wrapper(t.resolve_conj().resolve_neg())  # torch loses the bits of a wrapped one


@mutation
def parameter(t: Tensor, draw: random.Random) -> Tensor:
    return torch.nn.Parameter(t)


@mutation
def in_a_graph(t: Tensor, draw: random.Random) -> Tensor:
    return t.clone().requires_grad_() * 1


@mutation
def inference(t: Tensor, draw: random.Random) -> Tensor:
    with torch.inference_mode():
        return t.clone()


@mutation
def dual(t: Tensor, draw: random.Random) -> Tensor:
    if fwd_ad._current_level < 0:
        fwd_ad.enter_dual_level()
    return fwd_ad.make_dual(t, torch.ones_like(t))


def leave_dual_level() -> None:
    """End the level that `dual` entered: calls do not depend on those before them."""
    while fwd_ad._current_level >= 0:
        fwd_ad.exit_dual_level()
