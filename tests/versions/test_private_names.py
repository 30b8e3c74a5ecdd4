"""Every private name of torch and Triton that src/ uses is known, and is what it is taken for.

The table: versions/operators.py and versions/lab.py. A canary that fails says who uses the name,
what for, and what to do.
"""

from __future__ import annotations

import ast
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from versions import lab, operators, scan
from versions.use import Use, resolve

USES = (*operators.USES, *lab.USES, *lab.TRITONS)
NAMES = [(name, use) for use in USES for name in use.probes]
# Attributes that others keep on torch's modules: transformers, accelerate.
OTHERS = {"_hf_hook", "_is_hf_initialized", "_old_forward", "_loss_function"}


def last(name: str) -> str:
    return name.rpartition(".")[2]


def covers(listed: str, found: str) -> bool:
    """Whether a listed name stands for one that was found: itself, its module, its attribute."""
    if "." not in found:
        return last(listed) == found
    return listed == found or found.startswith(f"{listed}.") or listed.startswith(f"{found}.")


def test_no_private_name_is_used_that_the_table_has_not() -> None:
    listed = {name for name, _ in NAMES}
    unlisted = {
        name: places
        for name, places in scan.used().items()
        if name not in OTHERS and not any(covers(one, name) for one in listed)
    }
    assert unlisted == {}, (
        "private names without a canary: do it by what is public, or add each to "
        "tests/versions/operators.py or lab.py, with a probe that fails when it changes"
    )


def test_the_table_has_no_name_that_is_not_used() -> None:
    used = scan.used()
    unused = [
        name
        for name, use in NAMES
        if name not in use.beyond and not any(covers(name, found) for found in used)
    ]
    texts = [path.read_text() for path in sorted(scan.SOURCES.rglob("*.py"))]
    beyond = [pair for use in USES for pair in use.beyond.items()]
    unused += [name for name, word in beyond if not any(word in text for text in texts)]
    assert unused == []
    assert len({*OTHERS} - {*used}) == 0


def test_a_use_says_what_for_and_what_to_do() -> None:
    for use in USES:
        assert use.purpose
        assert ".py" in use.remedy, use.purpose


def message(name: str, use: Use, error: BaseException | None) -> str:
    places = sorted({p for found, at in scan.used().items() if covers(name, found) for p in at})
    what = f"{type(error).__name__}: {error}" if error else "its probe says no"
    return (
        f"{name} is not what src/ takes it for in torch {torch.__version__}: {what}\n"
        f"  used in: {', '.join(places) or 'see the remedy'}\n"
        f"  for: {use.purpose}\n"
        f"  to do: {use.remedy}"
    )


def look_up(name: str) -> Any:
    """Return what the name stands for; of an attribute that instances alone have, its class."""
    if name == "torch.__trace":
        return logging.getLogger(name)
    try:
        return resolve(name)
    except (AttributeError, ImportError):
        owner = resolve(name.rpartition(".")[0])
        if isinstance(owner, type):
            return owner
        raise


@pytest.mark.parametrize(("name", "use"), NAMES, ids=[name for name, _ in NAMES])
def test_canary(name: str, use: Use) -> None:
    if use in lab.TRITONS:
        pytest.importorskip("triton")
    if last(name).startswith("_cuda_") and not torch.backends.cuda.is_built():
        pytest.skip("of builds with CUDA; launch.py does without it")
    try:
        good, error = bool(use.probes[name](look_up(name))), None
    except Exception as raised:
        good, error = False, raised
    assert good, message(name, use, error)


def scanned(text: str) -> list[str]:
    def names() -> Iterator[str]:
        yield from scan.names(ast.parse(text))

    return sorted(set(names()))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import torch\ntorch._C._new(1)", "torch._C._new"),
        ("from torch._inductor import config", "torch._inductor.config"),
        ("from torch._inductor import config as c\nc.new = 1", "torch._inductor.config.new"),
        ("import torch\nf = torch._C._new\n", "torch._C._new"),
        ("import torch\nc = torch._inductor.config\nc.new", "torch._inductor.config.new"),
        ("import torch\ngetattr(torch._C, '_new')", "_new"),
        ("import torch\ngetattr(torch._C, '_new').other", "torch._C._new.other"),
        ("import importlib\nimportlib.import_module('torch._new.x')", "torch._new.x"),
        ("def f(op): return op._new", "_new"),
        ("S = {'_new': 1}", "_new"),
        ("S = 'aten::_new(Tensor self) -> Tensor'", "torch.ops.aten._new"),
        ("import torch\naten = torch.ops.aten\naten._new.default", "torch.ops.aten._new.default"),
        ("import torch\ndef f(): return torch.nn.Module._new", "torch.nn.Module._new"),
        ("from triton.runtime import driver", "triton.runtime.driver"),
        ("import triton\ntriton.compiler.compile", "triton.compiler.compile"),
    ],
)
def test_the_scan_finds(text: str, found: str) -> None:
    assert found in scanned(text)


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.__version__\ntorch.nn.Module.__call__",
        "class A:\n def f(self): return self._own",
        "def f(x): return x._mine\ndef g(x): x._mine = 1",
        '"""torch._C._new"""',
        "import torch\ntorch.ops.fuseline._softmax_fwd",
        "import triton\nfrom triton import language as tl\ntriton.jit",
        "x = pair._replace(a=1)",
    ],
)
def test_the_scan_leaves_alone(text: str) -> None:
    assert scanned(text) == []


def test_a_canary_that_fails_says_who_what_for_and_what_to_do() -> None:
    use = Use("a purpose", "mend core/native.py", {"torch._C._dispatch_dump": lambda _: False})
    said = message("torch._C._dispatch_dump", use, KeyError("gone"))
    file = "fuseline/core/registration/overrides.py"
    for part in ("KeyError: 'gone'", file, "a purpose", "core/native.py"):
        assert part in said
