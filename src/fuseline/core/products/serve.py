"""Registers an operator that multiplies, with the libraries that serve it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from fuseline.core import contract, operator
from fuseline.core.products import aten, cublaslt, onednn
from fuseline.core.products.product import Product
from fuseline.core.select import Selector


def register(product: Product, eager: Callable[..., Tensor]) -> Selector:
    """Register an operator; return its selector, in order of preference."""

    def checked(*args: Any) -> Tensor:
        product.validate(*args)
        return eager(*args)

    libraries = (cublaslt, onednn, aten)
    return contract.provided(
        product.contract(), checked, *(lib.provider(product) for lib in libraries)
    )


def call(
    product: Product, selector: Selector, public: Callable[..., Any], impl: str, *args: Any
) -> Tensor:
    """Run an operator; under autocast on what torch's products would take."""
    lowered = operator.lowered(*args)
    y: Tensor = operator.call(selector, product.validate, public, impl, *lowered)
    return y
