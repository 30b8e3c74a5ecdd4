"""Registers an operator that multiplies, with the libraries that serve it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from fuseline.core.products.aten import Aten
from fuseline.core.products.backend import Backend
from fuseline.core.products.chain import Chain
from fuseline.core.products.cublaslt import CublasLt
from fuseline.core.products.onednn import OneDnn
from fuseline.core.products.product import Product
from fuseline.core.products.triton import Triton
from fuseline.core.registration import contract, operator
from fuseline.core.selection.select import Selector


def register(
    one: Product | Chain, eager: Callable[..., Tensor], kernels: Callable[[], Any]
) -> Selector:
    """Register an operator; return its selector, in order of preference.

    kernels()  the operator's module impl_triton
    """

    def checked(*args: Any) -> Tensor:
        one.validate(*args)
        return eager(*args)

    backends = (CublasLt(), Triton(kernels), OneDnn(), Aten())
    return contract.provided(one.contract(), checked, *(_provider(one, b) for b in backends))


def _provider(one: Product | Chain, backend: Backend) -> contract.Provider:
    serves_all = type(backend).refusal is Backend.refusal
    return contract.Provider(
        backend.name,
        one.kernels(backend),
        backend.unavailable,
        None if serves_all else partial(one.refusal, backend),
        through=backend.is_traced,
        by_rule=one.by_rule(backend),
    )


def call(
    one: Product | Chain, selector: Selector, public: Callable[..., Any], impl: str, *args: Any
) -> Tensor:
    """Run an operator; under autocast on what torch's products would take."""
    y: Tensor = operator.call(selector, one.validate, public, impl, *operator.lowered(*args))
    return y
