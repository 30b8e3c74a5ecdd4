"""A formula as XLA gets it: with the dtypes of the operator, its Python values compiled in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from fuselab.twin.formulas import FORMULAS, WIDE

jax.config.update("jax_enable_x64", True)  # fp64 is fp64, as in torch
jax.config.update("jax_default_matmul_precision", "highest")


@dataclass(frozen=True)
class Program:
    """Forward and backward of one operator with its Python values, jitted.

    forward   (*arrays) -> outputs
    saving    (*arrays) -> (outputs, what the backward needs)
    backward  (what the backward needs, gradients of the outputs) -> gradients of the arrays
    """

    forward: Any
    saving: Any
    backward: Any


def program(op: str, arrays: tuple[str, ...], values: Mapping[str, Any]) -> Program:
    """Return the program of an operator whose `arrays` are given in this order."""
    fixed = ((n, tuple(v) if isinstance(v, list) else v) for n, v in sorted(values.items()))
    return _program(op, arrays, tuple(fixed))


@cache
def _program(op: str, arrays: tuple[str, ...], values: tuple[tuple[str, Any], ...]) -> Program:
    def forward(*given: Array) -> Any:
        wide = (_wide(t) for t in given)
        found = FORMULAS[op](**dict(zip(arrays, wide, strict=True)), **dict(values))
        several = isinstance(found, tuple)
        outs = found if several else (found,)
        narrow = tuple(
            t if i == WIDE.get(op) else _narrow(t, given[0].dtype) for i, t in enumerate(outs)
        )
        return narrow if several else narrow[0]

    return Program(
        jax.jit(forward),
        jax.jit(lambda *given: jax.vjp(forward, *given)),
        jax.jit(lambda vjp, gradients: vjp(gradients)),
    )


def _wide(t: Array) -> Array:
    return t.astype(jnp.float32) if t.dtype in (jnp.float16, jnp.bfloat16) else t


def _narrow(t: Array, dtype: Any) -> Array:
    return t if t.dtype == jnp.float8_e4m3fn else t.astype(dtype)
