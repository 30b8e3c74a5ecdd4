"""What a shell's Tab offers: operators, implementations, cases, suites, dtypes.

Operators come from folder names alone; what stands in their specs costs an import of torch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from fuselab.planning.wild import SUITE

if TYPE_CHECKING:
    from fuseline.core.specs.spec import OpSpec

DTYPES = ("fp64", "fp32", "fp16", "bf16")


def targets(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of operators, and Python files with specs of one's own."""
    return [*_starting(incomplete, _operators()), CompletionItem(incomplete, type="file")]


def operators(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of operators."""
    return _starting(incomplete, _operators())


def implementations(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Complete implementations of the operators named before, or of all."""
    found = [impl.name for spec in _specs(ctx) for impl in spec.implementations]
    return _starting(incomplete, [*found, "compile", "torchscript", "native", "enabled"])


def cases(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of cases of the operators named before, or of all."""
    return _starting(incomplete, (case.name for spec in _specs(ctx) for case in spec.cases))


def suites(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete names of suites of the operators named before, or of all."""
    found = [name for spec in _specs(ctx) for name in spec.suites]
    return _starting(incomplete, [*found, SUITE, "all"])


def dtypes(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete dtypes by their short names."""
    return _starting(incomplete, DTYPES)


def directions(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete fwd and bwd."""
    return _starting(incomplete, ("fwd", "bwd"))


def _starting(incomplete: str, names: Iterable[str]) -> list[CompletionItem]:
    return [CompletionItem(name) for name in dict.fromkeys(names) if name.startswith(incomplete)]


def _operators() -> list[str]:
    spec = importlib.util.find_spec("fuseline")  # does not import it, nor torch
    folders = spec.submodule_search_locations if spec else None
    files = (file for folder in folders or () for file in Path(folder).glob("ops/*/spec.py"))
    return sorted({file.parent.name for file in files})


def _specs(ctx: click.Context) -> list[OpSpec]:
    from fuseline import table

    given = ctx.params.get("targets") or ctx.params.get("target") or ()
    # Where the option to complete has no value yet, click leaves operands in ctx.args.
    wanted = {*([given] if isinstance(given, str) else given), *ctx.args}
    specs = table.load()
    return [spec for name, spec in specs.items() if not wanted & specs.keys() or name in wanted]
